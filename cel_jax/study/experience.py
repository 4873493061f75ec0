"""Where an arm's training data comes from: a lock-step fleet that collects, or the demonstrations."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from cel_jax.config import RunConfig
from cel_jax.data.episode import Features
from cel_jax.evaluation.rollout import Rollout
from cel_jax.evaluation.scene_policy import scene_policy
from cel_jax.evaluation.trials import Trial, TrialResult
from cel_jax.fert.interfaces import Store
from cel_jax.models.policy import Policy
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.study.stores import DemonstrationStore, OracleStore

SEEDS_APART = 1_000_000  # scenes of different seeds of a study never meet


@dataclasses.dataclass(frozen=True)
class Collected:
    """One round's episodes. failures: how many ended in each stage. steps: control steps of all of them."""

    episodes: int = 0
    successes: int = 0
    steps: int = 0
    failures: dict[int, int] = dataclasses.field(default_factory=dict)


class Experience(Protocol):
    """What the learner trains on, and how a round adds to it."""

    @property
    def store(self) -> Store: ...

    def collect(self, policy: Policy, version: int, round_number: int) -> Collected:
        """Runs one round's episodes under a policy and books them."""
        ...

    def effective_share(self) -> float:
        """Effective number of chunks under the present weights over all chunks; 1: uniform."""
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

    def effective_share(self) -> float:
        return 1.0

    def snapshot(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is open."""


class FleetExperience:
    """Simulated robots in lock-step; labelled episodes go through the same store as in a fleet.

    lock: the learner's. Each robot in turn gets the next scene, and no scene is used twice.
    """

    def __init__(
        self, folder: Path, config: RunConfig, features: Features, rollout: Rollout, lock: threading.Lock, oracle: bool
    ) -> None:
        self._config, self._rollout, self._lock = config, rollout, lock
        self._incoming = folder / "collected"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._table = MemoryTable(config.policy.action_horizon, config.replay.uniform_share)
        self._inner = ExperienceStore(folder / "experience", self._table, StoreConfig.of(config), features)
        self._inner.reset_learner("study")
        self._oracle = OracleStore(self._inner, config.fert.top_k, config.fleet.seed) if oracle else None
        self.store: Store = self._oracle or self._inner

    def collect(self, policy: Policy, version: int, round_number: int) -> Collected:
        results: list[TrialResult] = []

        def finished(result: TrialResult) -> None:
            self._book(result)
            results.append(dataclasses.replace(result, episode=None))

        infer = scene_policy(policy, self._config.task.prompt)
        self._rollout.run(infer, self._trials(round_number), finished, lambda: version)
        failed = collections.Counter(result.stage for result in results if not result.success)
        successes = sum(result.success for result in results)
        return Collected(len(results), successes, sum(result.steps for result in results), dict(failed))

    def _trials(self, round_number: int) -> Iterator[Trial]:
        """An iterator, so that results need not be kept in order."""
        fleet, count = self._config.fleet, self._config.study.episodes_per_round
        first = fleet.seed * SEEDS_APART + round_number * count
        return iter([Trial(fleet.first_robot + i % fleet.robots, first + i) for i in range(count)])

    def _book(self, result: TrialResult) -> None:
        """As a delivery: encoded, written, accepted. An interrupted round's episodes come again and are known."""
        if result.episode is None:
            raise ValueError(f"{result.trial}: the rollout of a study must record its episodes")
        if self._oracle is not None:
            self._oracle.saw(result.episode)
        with self._lock:
            self._inner.accept_episode(result.episode, self._incoming / f"{result.seed}.cele")

    def effective_share(self) -> float:
        weights = list(itertools.chain.from_iterable(self._table.weights(name) for name in self._table.episodes))
        total = sum(weights)
        return total**2 / sum(w * w for w in weights) / len(weights) if total else 1.0

    def snapshot(self) -> bytes:
        return self._inner.snapshot().encode()

    def close(self) -> None:
        self._inner.close()
