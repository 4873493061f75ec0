"""Where an arm's training data comes from: a lock-step fleet that collects, or the demonstrations."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol

import numpy as np

from cel_jax.config import RunConfig
from cel_jax.data.episode import Episode, Features
from cel_jax.data.episode_codec import decode_episode
from cel_jax.evaluation.rollout import Rollout
from cel_jax.evaluation.trials import TrialResult
from cel_jax.fert.interfaces import Store
from cel_jax.models.policy import Policy
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.study import emphasis
from cel_jax.study.collecting import Collected, FirstRound, collect_round
from cel_jax.study.stores import DemonstrationStore, OracleStore


class Experience(Protocol):
    """What the learner trains on, and how a round adds to it."""

    @property
    def store(self) -> Store: ...

    def collect(self, policy: Policy, version: int, round_number: int) -> Collected:
        """Runs one round's episodes under a policy and books them."""
        ...

    def emphasis(self) -> tuple[float, dict[int, float]]:
        """By the present weights: effective share of the chunks (1: uniform), and each stage's share of the weight."""
        ...

    def snapshot(self) -> bytes:
        """For the training checkpoint; empty where there is nothing to restore."""
        ...

    def close(self) -> None: ...


class DemonstrationExperience:
    """The control that collects nothing."""

    def __init__(self, store: DemonstrationStore) -> None:
        self.store = store

    def collect(self, policy: Policy, version: int, round_number: int) -> Collected:
        return Collected()

    def emphasis(self) -> tuple[float, dict[int, float]]:
        return 1.0, {}

    def snapshot(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is open."""


class FleetExperience:
    """Simulated robots in lock-step; labelled episodes go through the same store as in a fleet.

    lock: the learner's. Each robot in turn gets the next scene, and no scene is used twice. first: episodes that
    stand for the first round's.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        features: Features,
        rollout: Rollout,
        lock: threading.Lock,
        oracle: bool,
        first: FirstRound | None = None,
    ) -> None:
        self._config, self._rollout, self._lock, self._first = config, rollout, lock, first
        self._incoming = folder / "collected"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._table = MemoryTable(config.policy.action_horizon, config.replay.uniform_share)
        self._inner = ExperienceStore(folder / "experience", self._table, StoreConfig.of(config), features)
        self._inner.reset_learner("study")
        self._oracle = OracleStore(self._inner, config.fert.top_k, config.fleet.seed) if oracle else None
        self.store: Store = self._oracle or self._inner
        self._stages: dict[str, np.ndarray] = {}  # of successes, int [T]
        for episode in self._inner.taken():  # of an interrupted run
            self._saw(episode)

    def collect(self, policy: Policy, version: int, round_number: int) -> Collected:
        if round_number == 0 and self._first is not None:
            return self._take(self._first)
        return collect_round(self._rollout, self._config, policy, version, round_number, self._book)

    def _take(self, first: FirstRound) -> Collected:
        for path in first.files:
            mine = self._incoming / path.name
            mine.unlink(missing_ok=True)  # of an interrupted run
            os.link(path, mine)
            self._saw(decode_episode(mine.read_bytes()))
            with self._lock:
                self._inner.accept(mine)
        return first.collected

    def _book(self, result: TrialResult) -> None:
        """As a delivery: encoded, written, accepted. An interrupted round's episodes come again and are known."""
        assert result.episode is not None
        self._saw(result.episode)
        with self._lock:
            self._inner.accept_episode(result.episode, self._incoming / f"{result.seed}.cele")

    def _saw(self, episode: Episode) -> None:
        """Stage labels are for analysis and for the oracle; the store's own learning never reads them."""
        if episode.success:
            self._stages[episode.header.id] = episode.stage
        if self._oracle is not None:
            self._oracle.saw(episode)

    def emphasis(self) -> tuple[float, dict[int, float]]:
        held = {episode: self._table.weights(episode) for episode in self._table.episodes}
        weights, stages = emphasis.gathered(self._table.keys(), held, self._stages)
        return emphasis.effective_share(weights), emphasis.stage_shares(weights, stages)

    def snapshot(self) -> bytes:
        return self._inner.snapshot().encode()

    def close(self) -> None:
        self._inner.close()
