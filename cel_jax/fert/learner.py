"""The learner: ingest experience, train on it, publish policies. The loop and the sockets are the caller's."""

from __future__ import annotations

import dataclasses
import enum
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.config import TrainConfig
from cel_jax.data.images import DamagedImage
from cel_jax.fert import sharding
from cel_jax.fert.checkpoints import CheckpointStore
from cel_jax.fert.ingestion import Ingestion, IngestReport
from cel_jax.fert.interfaces import Chunks, Store
from cel_jax.fert.manifest import named_leaves
from cel_jax.fert.prefetch import Prefetcher
from cel_jax.fert.ring import SuccessRing
from cel_jax.fert.trainer import TrainState, TrainStep
from cel_jax.replay.table import TableEmpty

NUMBERS = ("state", "actions", "objects")
PREFETCH = 2  # batches made ahead: a batch's priorities are at most this many updates old


MAX_UNEXPLAINED = 3  # refused steps in a row that no chunk is to blame for
ABSURD = 1e4  # a normalised number beyond this many standard deviations is to blame for a refused step


class TrainingDiverged(FloatingPointError):
    """Steps are refused again and again: the loss or a norm is not finite. The state is that of the last good step."""


class Phase(str, enum.Enum):
    """What the learner is doing, or waiting for."""

    WAITING_FOR_MIN_FRAMES = "waiting for min_frames"
    WAITING_FOR_BATCH = "waiting for a batch"
    TRAINING = "training"
    REFUSED = "refused a batch"
    FINISHED = "finished"


@dataclasses.dataclass(frozen=True)
class Status:
    """A phase, since when (seconds, monotonic clock), and the numbers behind it."""

    phase: Phase
    since_s: float
    detail: str = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since_s

    def __str__(self) -> str:
        return f"{self.phase.value}{': ' if self.detail else ''}{self.detail} (for {self.seconds:.0f} s)"


@dataclasses.dataclass(frozen=True)
class StepReport:
    """One update. metrics: the step's norms and loss, and times in seconds. keys: the chunks it was made from."""

    step: int
    metrics: dict[str, float]
    priority_version: int
    keys: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Published:
    """A policy to hand out: its own copy of the parameters (the EMA if it is on), on the devices."""

    version: int
    step: int
    params: Any


@dataclasses.dataclass(frozen=True)
class _Ready:
    arrays: Any
    chunks: Chunks
    numbers: dict[str, np.ndarray]  # on the host, normalised: [B, ..] each
    make_s: float


def _copied(params: Any) -> Any:
    return jax.tree.map(jnp.copy, params)


class Learner:
    """Owns the training state. `ingest`, `train_step`, `publish` and `checkpoint` are called from one thread.

    make_batch: `Chunks` -> host arrays (see `BatchMaker`). min_frames: success frames before the first step.
    policy_version: of the parameters that robots start with. lock: the one that `ingestion` holds, too.
    problems: what was refused so far, in words. refused: how many steps.
    """

    def __init__(
        self,
        store: Store,
        ingestion: Ingestion,
        ring: SuccessRing,
        make_batch: Callable[[Chunks], Any],
        train_step: TrainStep,
        state: TrainState,
        mesh: Mesh,
        config: TrainConfig,
        min_frames: int,
        lock: threading.Lock,
        checkpoints: CheckpointStore | None = None,
        policy_version: int = 0,
    ):
        self.state = state
        self.step = int(state.step)
        self.policy_version = policy_version
        self.status = Status(Phase.WAITING_FOR_MIN_FRAMES, time.monotonic(), f"have 0 of {min_frames}")
        self._store, self._ingestion, self._ring, self._lock = store, ingestion, ring, lock
        self._make_batch, self._train_step, self._mesh, self._config = make_batch, train_step, mesh, config
        self._min_frames, self._checkpoints = min_frames, checkpoints
        self._published_step = self._saved_step = self.step
        self._started = self.step > 0  # a resumed run trained already: its store decides what can be sampled
        self._prefetcher: Prefetcher | None = None
        self.problems: list[str] = []
        self.refused = self._unexplained = 0

    def ingest(self, max_items: int = 8) -> IngestReport:
        """Embed new successes, turn new failures into events."""
        return self._ingestion.run(max_items)

    @property
    def skipped(self) -> int:
        """Episodes that ingestion has set aside."""
        return self._ingestion.skipped

    def train_step(self, wait_s: float = 1.0) -> StepReport | None:
        """One update, or None with `status` saying why not (waits at most `wait_s` for a batch).

        A step whose result is not finite is refused: the state stays, and the episodes to blame leave the store.
        Raises TrainingDiverged, CheckpointFailed, and whatever made a batch impossible.
        """
        if self._checkpoints:
            self._checkpoints.check()
        if self.step >= self._config.max_steps:
            self._enter(Phase.FINISHED, f"{self.step} steps")
        elif not self._enough_frames():
            self._enter(Phase.WAITING_FOR_MIN_FRAMES, f"have {self._ring.total_frames} of {self._min_frames}")
        else:
            return self._try_update(wait_s)
        return None

    def publish(self, force: bool = False, copy: Callable[[Any], Any] = _copied) -> Published | None:
        """The next policy version if one is due (every `sync_interval_steps`), else None. Does not wait for the device.

        force: also between intervals, as for the last version of a run. copy: parameters to copies of them, which
        outlive the next step.
        """
        due = self.step % self._config.sync_interval_steps == 0 or force
        if not due or self.step == self._published_step:
            return None
        self._published_step = self.step
        self.policy_version += 1
        params = self.state.params if self.state.ema_params is None else self.state.ema_params
        return Published(self.policy_version, self.step, copy(params))

    def checkpoint(self, extras: Callable[[], dict[str, Any]], force: bool = False) -> bool:
        """Start a save if one is due; True if so. extras: priorities, norm_stats and so on, asked for only then."""
        due = self.step % self._config.checkpoint_interval_steps == 0 or force
        if self._checkpoints is None or not due or self.step == self._saved_step:
            return False
        with self._lock:
            values = extras()
        self._checkpoints.save(self.state, self.policy_version, values)
        self._saved_step = self.step
        return True

    def close(self) -> None:
        """End the prefetch thread, then wait for a running save. Raises what either has to report."""
        try:
            if self._prefetcher is not None:
                self._prefetcher.close()
        finally:
            if self._checkpoints is not None:
                self._checkpoints.close()

    def _enough_frames(self) -> bool:
        self._started = self._started or self._ring.total_frames >= self._min_frames
        return self._started

    def _try_update(self, wait_s: float) -> StepReport | None:
        start = time.monotonic()
        ready = self._next_batch(wait_s)
        if ready is None:
            self._enter(Phase.WAITING_FOR_BATCH, "the store has no chunk, or decoding is slower than training")
            return None
        return self._update(ready, time.monotonic() - start)

    def _enter(self, phase: Phase, detail: str) -> None:
        """Name the state; its timer runs on while the phase stays."""
        since = self.status.since_s if self.status.phase is phase else time.monotonic()
        self.status = Status(phase, since, detail)

    def _next_batch(self, wait_s: float) -> _Ready | None:
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self._prepare, self.step, PREFETCH)
        return self._prefetcher.get(wait_s)

    def _prepare(self, number: int) -> _Ready | None:
        """Batch `number` on the devices; runs in the prefetch thread. Its seed depends on run and number only."""
        start = time.monotonic()
        chunks = self._sample(number)
        if chunks is None:
            return None
        try:
            batch = self._make_batch(chunks)
        except DamagedImage as error:
            self._set_aside({error.episode: str(error)})
            return None
        numbers = {name: batch[name] for name in NUMBERS if name in batch}
        return _Ready(sharding.put_batch(batch, self._mesh), chunks, numbers, time.monotonic() - start)

    def _sample(self, number: int) -> Chunks | None:
        size = self._config.batch_size // jax.process_count()
        with self._lock:
            try:
                return self._store.sample(size, self._config.seed * 1_000_003 + number)
            except TableEmpty:  # a named state, see Phase.WAITING_FOR_BATCH
                return None

    def _update(self, ready: _Ready, wait_s: float) -> StepReport | None:
        start = time.monotonic()
        self.state, values = self._train_step(self.state, ready.arrays)
        metrics = {name: float(value) for name, value in jax.device_get(values).items()}
        if metrics.pop("refused"):
            self._refuse(metrics, ready)
            return None
        self.step, self._unexplained = self.step + 1, 0
        self._enter(Phase.TRAINING, f"step {self.step}")
        metrics |= {"step_s": time.monotonic() - start, "wait_s": wait_s, "make_batch_s": ready.make_s}
        metrics |= _sampling(ready.chunks) | (self._checkpoints.metrics if self._checkpoints else {})
        return StepReport(self.step, metrics, ready.chunks.priority_version, tuple(ready.chunks.keys))

    def _refuse(self, metrics: dict[str, float], ready: _Ready) -> None:
        """The state is as it was. Raises TrainingDiverged where weights are to blame, or repeatedly nothing is."""
        bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        what = f"step {self.step + 1} refused, {bad}"
        self.refused += 1
        self._check_weights(what)
        blamed = spoiled(ready.chunks.keys, ready.numbers)
        self._set_aside({episode: f"{what}: {reason}" for episode, reason in blamed.items()})
        if not blamed:
            self._unexplained_step(f"{what}: batch of {len(ready.chunks.keys)} chunks from {ready.chunks.keys[:3]}")
        self._enter(Phase.REFUSED, self.problems[-1])

    def _unexplained_step(self, what: str) -> None:
        self.problems.append(what)
        self._unexplained += 1
        if self._unexplained >= MAX_UNEXPLAINED:
            raise TrainingDiverged(f"{what}, {self._unexplained} in a row. Resume with a lower peak_lr or clip_norm.")

    def _check_weights(self, what: str) -> None:
        for name, leaf in named_leaves(self.state.params).items():
            if not bool(jnp.isfinite(leaf).all()):
                raise TrainingDiverged(f"{what}: weights {name} are not finite; resume from an older checkpoint")

    def _set_aside(self, blamed: dict[str, str]) -> None:
        """These episodes are sampled no more."""
        for episode, reason in blamed.items():
            with self._lock:
                self._store.quarantine(episode, reason)
            self.problems.append(f"episode {episode}: {reason}")


def spoiled(keys: Sequence[tuple[str, int]], numbers: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Episode -> why it is to blame for a refused step: the first of its chunks with a number that is none or absurd.

    keys: (episode, start frame) of B chunks. numbers: name -> normalised [B, ..].
    """
    found: dict[str, str] = {}
    for name, values in numbers.items():
        largest = np.abs(values.reshape(len(keys), -1)).max(axis=1)
        for row in np.flatnonzero(~(largest < ABSURD)).tolist():
            episode, start = keys[row]
            found.setdefault(episode, f"{name} of the chunk from frame {start}: normalised {largest[row]:g}")
    return found


def _sampling(chunks: Chunks) -> dict[str, float]:
    """How concentrated the batch is: priority version, mean probability, share of different chunks."""
    return {
        "priority_version": float(chunks.priority_version),
        "mean_probability": float(chunks.probabilities.mean()),
        "distinct_share": len(set(chunks.keys)) / max(1, len(chunks.keys)),
    }
