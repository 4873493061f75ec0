"""One arm of a study: rounds of collecting with one policy version, training between, and publishing.

A round's episodes reach the learner spread over the round's updates, as they do in a fleet, so that the emphasis moves
with every failure. An interrupted arm goes on at its last finished round.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cel_jax.config import RunConfig, config_hash
from cel_jax.data import normalize
from cel_jax.fert import build
from cel_jax.fert.checkpoints import CheckpointStore, Identity
from cel_jax.fert.learner import Phase
from cel_jax.fert.sharding import make_mesh
from cel_jax.models.policy import Policy
from cel_jax.study.arms import Arm
from cel_jax.study.collecting import Collected
from cel_jax.study.experience import Experience

STARVED_S = 60.0
ALL_PENDING = 1 << 30

MakeExperience = Callable[[threading.Lock], Experience]
Say = Callable[[str], None]


class StudyError(RuntimeError):
    """An arm that cannot go on; the message says why and what to change."""


@dataclasses.dataclass(frozen=True)
class Round:
    """What one round did. loss: mean over its updates. effective_share, stage_share: `Experience.emphasis` at its end.
    Times in seconds."""

    number: int
    version: int
    step: int
    collected: Collected
    loss: float
    effective_share: float
    collect_s: float
    train_s: float
    stage_share: dict[int, float] = dataclasses.field(default_factory=dict)


class LockstepArm:
    """Runs the rounds of one arm and gives out a policy after each."""

    def __init__(
        self, arm: Arm, config: RunConfig, start: Policy, folder: Path, make_experience: MakeExperience
    ) -> None:
        self._config, self._start = config, start
        lock = threading.Lock()
        self._experience = make_experience(lock)
        identity = Identity(f"{config.name}/{folder.name}", config.policy.preset, config_hash(config))
        self._checkpoints = CheckpointStore(folder / "checkpoints", identity, keep_last=1)
        state = build.start_state(start, config.train, make_mesh(config.train.fsdp_devices))
        version = 0
        if self._checkpoints.latest() is not None:
            restored = self._checkpoints.restore(state)
            state, version = restored.state, restored.policy_version
        self._learner, _ = build.build_learner(
            start, config, self._experience.store, state, lock, self._checkpoints, version,
            retriever=arm.retriever(config.fleet.seed),
        )  # fmt: skip
        published = state.params if state.ema_params is None else state.ema_params
        self._policy = start.with_params(published) if version else start

    @property
    def policy(self) -> Policy:
        """The last published policy."""
        return self._policy

    @property
    def rounds_done(self) -> int:
        """Every round publishes one version."""
        return self._learner.policy_version

    def run_round(self) -> Round:
        """Collects, trains `sync_interval_steps` updates, publishes and saves."""
        number, begin_s = self.rounds_done, time.monotonic()
        collected = self._experience.collect(self._policy, number, number)
        middle_s = time.monotonic()
        losses = self._train(self._pending(collected))
        published = self._learner.publish(force=True)
        if published is None:
            raise StudyError(f"round {number}: nothing to publish after {self._learner.step} steps")
        self._policy = self._start.with_params(published.params)
        self._learner.checkpoint(self._extras, force=True)
        effective_share, stage_share = self._experience.emphasis()
        return Round(
            number, published.version, self._learner.step, collected, float(np.mean(losses)),
            effective_share, middle_s - begin_s, time.monotonic() - middle_s, stage_share,
        )  # fmt: skip

    def _pending(self, collected: Collected) -> int:
        """Episodes that the store will announce; without retrieval, failures are not."""
        return collected.episodes if self._config.fert.failure_retrieval else collected.successes

    def _train(self, pending: int) -> list[float]:
        steps = self._config.train.sync_interval_steps
        losses: list[float] = []
        told = 0
        for step in range(steps):
            due = -(-pending * (step + 1) // steps)
            self._ingest(due - told)
            told = due
            losses.append(self._update())
        self._ingest(ALL_PENDING)
        return losses

    def _ingest(self, items: int) -> None:
        if items > 0:
            self._learner.ingest(items)

    def _update(self) -> float:
        """One update; before the first, episodes are taken in until there are enough frames."""
        ends_s = time.monotonic() + STARVED_S
        while time.monotonic() < ends_s:
            report = self._learner.train_step()
            if report is not None:
                return report.metrics["loss"]
            taken = self._learner.ingest(1)
            if self._learner.status.phase is Phase.WAITING_FOR_MIN_FRAMES and not (taken.successes or taken.events):
                break
        raise StudyError(
            f"no update: {self._learner.status}; give more --config.study.episodes_per_round, a better start "
            "policy or a lower --config.replay.min_frames"
        )

    def _extras(self) -> dict[str, object]:
        snapshot = np.frombuffer(self._experience.snapshot(), np.uint8)
        return {"store": snapshot, "norm_stats": normalize.to_dict(self._start.norm_stats)}

    def close(self) -> None:
        """Ends the learner's threads, waits for its save, closes the store."""
        try:
            self._learner.close()
        finally:
            self._experience.close()
