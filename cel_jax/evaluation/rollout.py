"""Lock-step trials on many simulated robots: every round, one batched policy call, then every robot executes its part.

Robots live in worker processes, several in each; the policy stays in this process. A fleet of real robots is
never run like this: it is for evaluation, for demonstrations and for the lock-step learning runner.

Shape letters: B batch (slots of a group), H horizon, F executed frames, A action numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from cel_jax.evaluation.rollout_pool import Reply, WorkerHandle, open_workers, wait_for_any
from cel_jax.evaluation.rollout_wire import unpack_result
from cel_jax.evaluation.trials import (
    MakeDriver,
    MakeRobot,
    ObservationBatch,
    PolicyInfer,
    RolloutError,
    RolloutOptions,
    Trial,
    TrialQueue,
    TrialResult,
)

OnResult = Callable[[TrialResult], None]
Place = tuple[int, int]  # (worker, slot)


def run_trials(
    policy_infer: PolicyInfer,
    make_robot: MakeRobot,
    trials: Iterable[Trial],
    options: RolloutOptions | None = None,
    on_result: OnResult | None = None,
) -> list[TrialResult]:
    """All trials under one policy; results in the order of the trials (of a list) or of their ends (of an iterator).

    make_robot: picklable, robot_seed -> Robot. Raises `RolloutError` where a worker dies, fails or is late.
    """
    with open_rollout(make_robot, options or RolloutOptions()) as rollout:
        return rollout.run(policy_infer, trials, on_result)


def run_demonstrations(
    make_robot: MakeRobot,
    make_driver: MakeDriver,
    trials: Iterable[Trial],
    options: RolloutOptions | None = None,
    on_result: OnResult | None = None,
) -> list[TrialResult]:
    """All trials under a driver inside the worker processes (no policy, no rounds); order as in `run_trials`."""
    options = options or RolloutOptions(record=True)
    queue = TrialQueue(trials, 1)
    found: list[TrialResult] = []
    with open_workers(make_robot, options, make_driver) as workers:
        idle = list(workers)
        while True:
            for worker in idle:
                if (trial := queue.take(None)) is not None:
                    worker.ask([{"slot": 0, "trial": dataclasses.asdict(trial)}])
            if not any(worker.busy for worker in workers):
                return _in_order(found, trials)
            idle = wait_for_any(workers)
            for worker in idle:
                for header, arrays in worker.answer():
                    found.append(unpack_result(header["result"], arrays))
                    if on_result is not None:
                        on_result(found[-1])


def _in_order(found: list[TrialResult], trials: Iterable[Trial]) -> list[TrialResult]:
    if not isinstance(trials, list | tuple):
        return found
    place = {trial: i for i, trial in enumerate(trials)}
    return sorted(found, key=lambda result: place[result.trial])


@contextlib.contextmanager
def open_rollout(make_robot: MakeRobot, options: RolloutOptions) -> Iterator[Rollout]:
    """Worker processes that stay for several `run`s: an evaluation of several policies, or a learning run."""
    with open_workers(make_robot, options) as workers:
        yield Rollout(workers, options)


class Rollout:
    """Drives the slots of all workers, in one group or in two that take turns."""

    def __init__(self, workers: list[WorkerHandle], options: RolloutOptions) -> None:
        self._workers, self._options = workers, options
        places = [(w, s) for s in range(options.slots_per_process) for w in range(len(workers))]
        self._groups = [
            [place for place in places if place[1] % options.groups == group] for group in range(options.groups)
        ]
        self._robot_at: dict[Place, int] = {}

    @property
    def num_slots(self) -> int:
        return len(self._workers) * self._options.slots_per_process

    def run(
        self,
        policy_infer: PolicyInfer,
        trials: Iterable[Trial],
        on_result: OnResult | None = None,
        policy_version: Callable[[], int] = lambda: 0,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> list[TrialResult]:
        """Runs trials until none is left or `keep_going`, asked after every round, says no (open trials are dropped).

        `trials` may be an endless iterator. `policy_version` is read at every round and recorded with the frames.
        Batches always have as many rows as a group has slots, so that a compiled policy compiles once.
        """
        state = _Run(TrialQueue(trials, 4 * self.num_slots), policy_infer, policy_version, on_result)
        for group in range(len(self._groups)):
            self._send(state, group, {})
        while any(worker.busy for worker in self._workers):
            for group in range(len(self._groups)):
                observations = self._receive(state, group)
                if state.stopped or not keep_going():
                    state.stopped = True
                    continue
                self._send(state, group, self._infer(state, group, observations))
        return _in_order(state.results, trials)

    def _send(self, state: _Run, group: int, chunks: dict[Place, np.ndarray]) -> None:
        """One message per worker: chunks for running trials, new trials for free slots."""
        commands: dict[int, list[dict[str, Any]]] = {}
        arrays: dict[int, list[np.ndarray]] = {}
        version = state.policy_version()
        for place in self._groups[group]:
            command: dict[str, Any] | None = None
            if place in chunks:
                command = {"slot": place[1], "version": version}
                arrays.setdefault(place[0], []).append(chunks[place])
            elif (trial := state.queue.take(self._robot_at.get(place))) is not None:
                self._robot_at[place] = trial.robot_seed
                state.open[place] = trial
                command = {"slot": place[1], "trial": dataclasses.asdict(trial)}
            if command is not None:
                commands.setdefault(place[0], []).append(command)
        for index, mine in commands.items():
            self._workers[index].ask(mine, arrays.get(index, ()))
        state.asked[group] = list(commands)

    def _receive(self, state: _Run, group: int) -> dict[Place, Reply]:
        """Observations of the group's running trials; results are taken out."""
        observations: dict[Place, Reply] = {}
        for index in state.asked.pop(group, []):
            for header, arrays in self._workers[index].answer():
                place = (index, header["slot"])
                if "result" in header:
                    del state.open[place]
                    state.finish(unpack_result(header["result"], arrays))
                else:
                    observations[place] = (header, arrays)
        return observations

    def _infer(self, state: _Run, group: int, observations: dict[Place, Reply]) -> dict[Place, np.ndarray]:
        """One policy call for the group -> float32 [F, A] for each running trial."""
        if not observations:
            return {}
        places = self._groups[group]
        batch = _batch(places, observations, state.open)
        chunks = np.asarray(state.policy_infer(batch))
        frames = self._options.execute_frames
        if chunks.ndim != 3 or len(chunks) != len(places) or chunks.shape[1] < frames:
            raise RolloutError(f"policy gave {chunks.shape}; expected [{len(places)}, H >= {frames}, A] action chunks")
        bad = [state.open[places[i]] for i in np.flatnonzero(batch.valid) if not np.isfinite(chunks[i]).all()]
        if bad:
            raise RolloutError(f"policy gave NaN or infinite actions in {bad[0]} ({len(bad)} trials)")
        return {place: chunks[i, :frames].astype(np.float32) for i, place in enumerate(places) if place in observations}


@dataclasses.dataclass
class _Run:
    """What one call of `Rollout.run` keeps."""

    queue: TrialQueue
    policy_infer: PolicyInfer
    policy_version: Callable[[], int]
    on_result: OnResult | None
    open: dict[Place, Trial] = dataclasses.field(default_factory=dict)
    asked: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    results: list[TrialResult] = dataclasses.field(default_factory=list)
    stopped: bool = False

    def finish(self, result: TrialResult) -> None:
        self.results.append(result)
        if self.on_result is not None:
            self.on_result(result)


def _batch(group: list[Place], observations: dict[Place, Reply], running: dict[Place, Trial]) -> ObservationBatch:
    """Rows in the order of the group's slots; slots without an observation repeat the first that has one."""
    spare = next(iter(observations))
    places = [place if place in observations else spare for place in group]
    replies = [observations[place] for place in places]
    header = replies[0][0]
    first_image = 1 + header["has_objects"]
    return ObservationBatch(
        images={
            camera: np.stack([arrays[first_image + i] for _, arrays in replies])
            for i, camera in enumerate(header["cameras"])
        },
        state=np.stack([arrays[0] for _, arrays in replies]),
        objects=np.stack([arrays[1] for _, arrays in replies]) if header["has_objects"] else None,
        valid=np.array([place in observations for place in group]),
        seed=np.array([running[place].seed for place in places], np.int64),
        step=np.array([header["step"] for header, _ in replies], np.int64),
    )
