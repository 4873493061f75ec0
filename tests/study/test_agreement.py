"""The study trains as the fleet does: the same episodes give the same weights, in the store and in the policy."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from cel_jax.bus.blobs import BlobServer
from cel_jax.config import PolicyConfig, RunConfig
from cel_jax.data.episode import Outcome
from cel_jax.data.normalize import NormStats
from cel_jax.fert import build
from cel_jax.fert.learner import Learner
from cel_jax.fert.sharding import make_mesh
from cel_jax.models import pi0
from cel_jax.models.policy import Policy
from cel_jax.models.presets import make_config
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.study.arms import ARMS
from cel_jax.study.collecting import Collected
from cel_jax.study.lockstep import LockstepArm
from cel_jax.workers.publishing import Publisher
from cel_jax.workers.store_client import RemoteStore
from cel_jax.workers.training import Loop
from cel_jax.workers.wiring import Wiring
from tests.workers.conftest import FEATURES, wiring
from tests.workers.test_store_worker import deliver, running

__all__ = ["wiring"]
STEPS = 3
ORDER = ("win-0", "fail-0", "win-1", "fail-1", "win-2", "fail-2", "win-3")
WINS = [name for name in ORDER if name.startswith("win")]
FRAMES = 80  # of one delivered episode


def start_policy() -> Policy:
    settings = PolicyConfig(action_horizon=6, actions_per_token=3, flow_steps=2, max_token_len=8, execute_frames=4)
    config = make_config("nano", FEATURES, settings)
    ones = np.ones((6, 3), np.float32)
    stats = NormStats(
        np.zeros(3, np.float32), np.ones(3, np.float32), 0 * ones, ones, np.zeros((2, 4), np.float32),
        np.ones((2, 4), np.float32),
    )  # fmt: skip
    return Policy(config, pi0.init_params(config, jax.random.key(0)), stats, FEATURES, settings)


def configure(config: RunConfig) -> None:
    """Updates begin when the last episode is in, since only then both have seen the same."""
    config.task.prompt = "Toy."
    config.fert.query_frames, config.fert.h_pre_frames, config.fert.h_post_frames = 20, 5, 5
    config.fert.stride_frames, config.fert.top_k = 1, 3
    config.replay.min_frames = len(WINS) * FRAMES
    train = config.train
    train.batch_size, train.sync_interval_steps, train.peak_lr, train.compute_dtype = 8, STEPS, 1e-3, "float32"
    train.checkpoint_interval_steps, train.warmup_steps, train.ema_decay = 10 * STEPS, 1, 0.9


def train_as_fleet(wiring: Wiring, start: Policy, store: RemoteStore) -> Learner:
    store.reset_learner("training-1-ab")
    state = build.start_state(start, wiring.config.train, make_mesh())
    learner, _ = build.build_learner(start, wiring.config, store, state, threading.Lock())
    wiring.context.stop_event = threading.Event()  # type: ignore[misc]
    publisher = Publisher(wiring, start, start.config, BlobServer())
    loop = Loop(wiring, start, store, learner, publisher)
    while learner.step < STEPS:
        loop.turn()
    publisher.close()
    return learner


class Recorded:
    """The experience of a study that consists of given episodes."""

    def __init__(self, folder: Path, episodes: list[Path], config: RunConfig) -> None:
        self._episodes, self._folder = episodes, folder
        self.store = ExperienceStore(folder / "store", MemoryTable(6), StoreConfig.of(config), FEATURES)
        self.store.reset_learner("study")

    def collect(self, policy: Policy, version: int, round_number: int) -> Collected:
        for path in self._episodes:
            self.store.accept(Path(shutil.copy(path, self._folder / path.name)))
        return Collected(len(self._episodes), len(WINS), 0)

    def emphasis(self) -> tuple[float, dict[int, float]]:
        return 1.0, {}

    def snapshot(self) -> bytes:
        return b""

    def close(self) -> None:
        self.store.close()


@pytest.mark.slow
def test_a_fleet_and_a_study_learn_the_same(wiring: Wiring, tmp_path: Path) -> None:
    configure(wiring.config)
    start = start_policy()
    with running(wiring, tmp_path) as (rig, store):
        for name in ORDER:
            deliver(rig, tmp_path, name, Outcome.SUCCESS if name in WINS else Outcome.FAILURE)
        learner = train_as_fleet(wiring, start, store)
        fleet_weights = {name: rig.store.table.weights(name) for name in WINS}
        episodes = [next((tmp_path / "store").rglob(f"{name}*.cel")) for name in ORDER]
        experience = Recorded(tmp_path, episodes, wiring.config)
        study = LockstepArm(ARMS["fert"], wiring.config, start, tmp_path / "arm", lambda lock: experience)
        study.run_round()
        for name in WINS:
            np.testing.assert_array_equal(fleet_weights[name], experience.store.table.weights(name))
        assert len({*np.concatenate(list(fleet_weights.values())).tolist()}) > 3, "the events moved no priority"
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(learner.state.ema_params), study.policy.params)
        study.close()
        learner.close()
