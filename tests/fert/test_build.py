"""A learner put together: LoRA presets train their adapters alone, and the ring has its place."""

from __future__ import annotations

import dataclasses
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import FertConfig, PolicyConfig, ReplayConfig, RunConfig, TrainConfig
from cel_jax.fert import build, ring_room
from cel_jax.fert.sharding import make_mesh
from cel_jax.models.params_io import flatten
from cel_jax.models.policy import Policy
from cel_jax.models.presets import frozen_path
from tests.fert.small_store import STATS, H, O, P, S, SmallStore, notice
from tests.models import robots
from tests.models.test_packed import with_rank

ROBOT = robots.features("state", state_dim=S, action_dim=S, objects_shape=(O, P), delta_mask=(True,) * S)
CONFIG = RunConfig(
    policy=PolicyConfig(action_horizon=H, max_token_len=5),
    train=TrainConfig(batch_size=8, peak_lr=1e-2, warmup_steps=1, decay_steps=50, ema_decay=0.5, sync_interval_steps=2),
    replay=ReplayConfig(min_frames=10),
    fert=FertConfig(query_frames=15, endpoint_offset_frames=3, top_k=2),
)
CONFIG.task.prompt = "go"


def lora_policy() -> Policy:
    network = robots.tiny("state", state_dim=S, action_dim=S, objects_shape=(O, P), action_horizon=H, max_token_len=5)
    network = with_rank(network)
    return Policy(network, robots.noisy_params(network), STATS, ROBOT, CONFIG.policy)


@pytest.mark.slow
def test_a_lora_preset_trains_its_adapters_and_publishes_everything() -> None:
    start, store = lora_policy(), SmallStore()
    store.add(*[notice("success", f"s{i}", 60, i) for i in range(3)])
    state = build.start_state(start, CONFIG.train, make_mesh())
    learner, _ = build.build_learner(start, CONFIG, store, state, threading.Lock())
    learner.ingest(9)
    while learner.step < 2:
        assert learner.train_step(wait_s=60) or learner.status.phase.value.startswith("waiting"), learner.status
    for tree in (learner.state.params, learner.state.ema_params, learner.publish().params):
        for name, leaf in flatten(tree).items():
            before = np.asarray(flatten(start.params)[name])
            if frozen_path(start.config, name):
                assert leaf.dtype == jnp.bfloat16
                np.testing.assert_array_equal(np.asarray(leaf), before.astype(jnp.bfloat16), err_msg=name)
            else:
                assert (np.asarray(leaf) != before).any(), name
    moments = {leaf.shape for leaf in jax.tree.leaves(learner.state.opt_state)}
    assert flatten(start.params)["PaliGemma/llm/layers/mlp/linear"].shape not in moments
    learner.close()


def test_the_window_has_room_on_every_device() -> None:
    assert ring_room.reserved_rows(350_000, 3, 1) == 128_334
    assert ring_room.reserved_rows(350_000, 3, 8) * 8 == pytest.approx(1.1 * 350_000 / 3, rel=1e-3)
    assert ring_room.reserved_rows(300, 3, 8) == 512


def test_room_counts_what_is_there_and_what_a_step_needs() -> None:
    stats = {"bytes_limit": 100, "bytes_in_use": 40}
    assert ring_room.has_room(30, 25, stats) and not ring_room.has_room(31, 25, stats)
    assert ring_room.has_room(10**15, 0, None), "an allocator that says nothing decides itself"


@dataclasses.dataclass
class FullDevice:
    """An accelerator of which the weights take all."""

    platform: str = "gpu"
    process_index: int = 0

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 10**6, "bytes_in_use": 9 * 10**5}


def test_a_full_device_sends_the_ring_to_host_memory_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    mesh = dataclasses.make_dataclass("OneDevice", ["devices"])(np.array([[FullDevice()]]))
    config = dataclasses.replace(CONFIG, replay=ReplayConfig(window_frames=3000))
    with caplog.at_level(logging.WARNING):
        ring = ring_room.make_ring(64, config, mesh, step_bytes=10**4)
    assert ring.on_host and "do not fit beside a training step" in caplog.text
    ring.add("e", np.ones((20, 64), np.float32), 60)
    assert ring.embeddings("e").dtype == jnp.bfloat16


def test_the_ring_of_a_cpu_grows_and_is_float32() -> None:
    ring = ring_room.make_ring(8, CONFIG, make_mesh(), step_bytes=0)
    ring.add("e", np.ones((20, 8), np.float32), 60)
    assert not ring.on_host and ring.embeddings("e").dtype == np.float32
