"""The success buffer keeps whole trajectories, grows without losing any, and searches the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.fert import ring as ring_module
from cel_jax.fert.ring import BadEmbeddings, SuccessRing


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
    ring, episodes = filled(40, dtype=dtype, on_host=on_host, rows=8)
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


def test_reused_rows_hold_nothing_of_their_predecessor():
    ring = SuccessRing(1, 10**6, rows=8)
    ring.add("long", np.zeros((8, 1), np.float32), 24)
    ring.evict("long")
    ring.add("short", np.ones((3, 1), np.float32), 9)
    assert ring.nbytes == 8 * 4
    (match,) = ring.align(np.zeros((2, 1), np.float32))
    assert (match.episode_id, match.cost, match.num_frames) == ("short", 1.0, 9)
    assert ring.align(np.zeros((4, 1), np.float32)) == []


@pytest.mark.parametrize("on_host", [False, True])
def test_a_long_life_equals_a_fresh_ring_at_every_moment(on_host):
    """Arrivals, evictions by the window and by name, reused gaps, growth: the answers are those of a ring that was
    filled with the present trajectories alone."""
    rng = np.random.default_rng(7)
    ring, held = SuccessRing(2, 700, rows=16, on_host=on_host), {}
    for number in range(120):
        if held and rng.random() < 0.2:
            name = str(rng.choice(list(held)))
            ring.evict(name)
            del held[name]
        frames = rng.integers(-3, 4, (int(rng.integers(1, 40)), 2)).astype(np.float32)
        for gone in ring.add(f"e{number}", frames, 3 * len(frames)):
            del held[gone]
        held[f"e{number}"] = frames
        assert ring.episode_ids == list(held) and ring.total_frames == 3 * sum(map(len, held.values())) <= 700
        if number % 10 == 9:
            fresh = SuccessRing(2, 10**9, rows=1024)
            for name, kept in held.items():
                np.testing.assert_array_equal(ring.embeddings(name), kept)
                fresh.add(name, kept, 3 * len(kept))
            query = rng.integers(-3, 4, (5, 2)).astype(np.float32)
            assert ring.align(query) == fresh.align(query)
            assert ring.nearest(query[None], [5], 4) == fresh.nearest(query[None], [5], 4)
    assert ring.nbytes <= 512 * 2 * 4, "gaps are not reused"


def test_queries_at_once_equal_one_by_one():
    ring, _ = filled(30)
    rng = np.random.default_rng(5)
    queries, counts = rng.integers(-4, 5, (5, 6, 4)).astype(np.float32), [6, 3, 1, 6, 5]
    together = ring.nearest(queries, counts, 4)
    for query, count, found in zip(queries, counts, together, strict=True):
        everything = ring.align(query, count)
        assert found == sorted(everything, key=lambda match: (match.cost, match.episode_id))[:4]


def test_no_compilation_within_a_bucket():
    ring, _ = filled(9, rows=2048)
    query = np.zeros((5, 4), np.float32)
    ring.align(query)
    compiled = ring._storage._align
    before = compiled._cache_size()
    for i in range(6):
        ring.add(f"new{i}", np.ones((4 + i, 4), np.float32), 12)
        ring.evict(f"e{i:03d}")
        ring.align(query)
    assert compiled._cache_size() == before


def test_second_delivery_changes_nothing_and_bad_embeddings_are_refused():
    ring = SuccessRing(2, 100)
    ring.add("a", np.ones((3, 2), np.float32), 9)
    ring.add("a", np.zeros((3, 2), np.float32), 9)
    assert ring.embeddings("a").min() == 1 and len(ring) == 1
    bad = np.ones((3, 2), np.float32)
    bad[1, 0] = np.inf
    for frames, why in ((np.ones((3, 5)), r"embeddings \(3, 5\), expected \[n >= 1, 2\]"), (bad, "at coarse frame 1")):
        with pytest.raises(BadEmbeddings, match=f"episode b: .*{why}"):
            ring.add("b", frames, 10**6)
        with pytest.raises(BadEmbeddings, match=f"query: .*{why}"):
            ring.align(frames)
    assert ring.episode_ids == ["a"] and ring.total_frames == 9


def test_host_and_device_give_the_same_answers():
    device, episodes = filled(80)
    host, _ = filled(80, on_host=True)
    query = episodes["e003"][:5]
    assert device.align(query) == host.align(query)


def test_a_full_accelerator_moves_the_ring_to_the_host_and_says_so(monkeypatch, caplog):
    def full(self, rows):
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
assert many._storage.shape[0] == len(many._storage._frames.sharding.device_set) == 8
assert not many._storage._frames.sharding.is_fully_replicated
for name in one.episode_ids:
    np.testing.assert_array_equal(one.embeddings(name), many.embeddings(name))
for _ in range(5):
    query = rng.integers(-4, 5, (6, 4)).astype(np.float32)
    assert one.align(query) == many.align(query)
    pair = np.stack([query, query[::-1]])
    assert one.nearest(pair, [6, 4], 5) == many.nearest(pair, [6, 4], 5)
print("same")
"""


@pytest.mark.slow
def test_sharded_over_eight_devices_equals_one():
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "same", done.stderr[-3000:]
