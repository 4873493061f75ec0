"""The success buffer keeps whole trajectories, grows without losing any, and searches the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.fert import ring as ring_module
from cel_jax.fert import ring_storage
from cel_jax.fert.ring import SuccessRing


def episode(rng: np.random.Generator, frames: int, dim: int = 4) -> np.ndarray:
    return rng.integers(-4, 5, (frames, dim)).astype(np.float32)


def filled(count: int, **kwargs) -> tuple[SuccessRing, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    episodes = {f"e{i:03d}": episode(rng, int(rng.integers(3, 90))) for i in range(count)}
    ring = SuccessRing(4, 10**9, **kwargs)
    for name, frames in episodes.items():
        ring.add(name, frames, 3 * len(frames))
    return ring, episodes


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("on_host", [False, True])
def test_growing_keeps_every_trajectory(dtype, on_host):
    ring, episodes = filled(40, dtype=dtype, on_host=on_host, frames=8)
    assert ring.on_host == on_host
    for name, frames in episodes.items():
        np.testing.assert_array_equal(ring.embeddings(name).astype(np.float32), frames)


def test_the_oldest_leave_whole_when_the_window_is_full():
    ring = SuccessRing(1, window_frames=100)
    gone = [ring.add(f"e{i}", np.full((10, 1), i, np.float32), 30) for i in range(5)]
    assert gone == [[], [], [], ["e0"], ["e1"]]
    assert ring.episode_ids == ["e2", "e3", "e4"] and ring.total_frames == 90
    matches = ring.align(np.full((2, 1), 1.0, np.float32))
    assert [(m.episode_id, m.cost) for m in matches] == [("e2", 1.0), ("e3", 2.0), ("e4", 3.0)]


def test_a_reused_slot_holds_nothing_of_its_predecessor():
    ring = SuccessRing(1, 10**6, slots=1, frames=8)
    ring.add("long", np.zeros((8, 1), np.float32), 24)
    ring.evict("long")
    ring.add("short", np.ones((3, 1), np.float32), 9)
    (match,) = ring.align(np.zeros((2, 1), np.float32))
    assert (match.episode_id, match.cost, match.num_frames) == ("short", 1.0, 9)
    assert ring.align(np.zeros((4, 1), np.float32)) == []


def test_no_compilation_within_a_bucket():
    ring, _ = filled(9, frames=128)
    query = np.zeros((5, 4), np.float32)
    ring.align(query)
    before = ring_storage.sdtw.align._cache_size()
    for i in range(6):
        ring.add(f"new{i}", np.ones((4 + i, 4), np.float32), 12)
        ring.align(query)
    assert ring_storage.sdtw.align._cache_size() == before


def test_second_delivery_changes_nothing_and_bad_embeddings_are_refused():
    ring = SuccessRing(2, 100)
    ring.add("a", np.ones((3, 2), np.float32), 9)
    ring.add("a", np.zeros((3, 2), np.float32), 9)
    assert ring.embeddings("a").min() == 1 and len(ring) == 1
    with pytest.raises(ValueError, match=r"b: embeddings \(3, 5\), expected \[n >= 1, 2\]"):
        ring.add("b", np.ones((3, 5), np.float32), 9)
    with pytest.raises(ValueError, match="c: its embeddings are not finite"):
        ring.add("c", np.full((3, 2), np.nan, np.float32), 9)


def test_host_and_device_give_the_same_answers():
    device, episodes = filled(80)
    host, _ = filled(80, on_host=True)
    query = episodes["e003"][:5]
    assert device.align(query) == host.align(query)


def test_a_full_accelerator_moves_the_ring_to_the_host_and_says_so(monkeypatch, caplog):
    def full(self, slots, frames):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(ring_module.DeviceStorage, "grow", full)
    ring, episodes = filled(20)
    assert ring.on_host and "do not fit the accelerator" in caplog.text
    for name, frames in episodes.items():
        np.testing.assert_array_equal(ring.embeddings(name), frames)


SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh
from cel_jax.fert.ring import SuccessRing
assert len(jax.devices()) == 8
mesh = Mesh(np.array(jax.devices()).reshape(8), ("data",))
rng = np.random.default_rng(0)
one, many = SuccessRing(4, 2000), SuccessRing(4, 2000, mesh=mesh)
for i in range(60):
    frames = rng.integers(-4, 5, (int(rng.integers(3, 90)), 4)).astype(np.float32)
    assert one.add(f"e{i}", frames, len(frames)) == many.add(f"e{i}", frames, len(frames))
assert len(many._storage._frames.sharding.device_set) == 8
assert not many._storage._frames.sharding.is_fully_replicated
for name in one.episode_ids:
    np.testing.assert_array_equal(one.embeddings(name), many.embeddings(name))
for _ in range(5):
    query = rng.integers(-4, 5, (6, 4)).astype(np.float32)
    assert one.align(query) == many.align(query)
print("same")
"""


@pytest.mark.slow
def test_sharded_over_eight_devices_equals_one():
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "same", done.stderr[-3000:]
