"""What a batch of trials consists of: which scenes on which robots, with which options, and what came out.

Shape letters: B batch, T frames, S state numbers, O objects, P numbers per object pose.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from cel_jax.data.episode import Episode, Outcome
from cel_jax.data.images import JPEG_QUALITY
from cel_jax.robots.protocol import Robot


class RolloutError(RuntimeError):
    """A worker process that died, failed or took too long; the message names it and the trials it had."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One scene on one robot: the same (robot_seed, seed) is the same scene for every policy. tag: the driver's own."""

    robot_seed: int
    seed: int
    tag: str = ""


def make_trials(robots: int, first_robot: int, trials_per_robot: int, seed: int) -> list[Trial]:
    """Scenes fixed beforehand: robot after robot, no seed used twice."""
    return [
        Trial(first_robot + r, seed + r * trials_per_robot + t) for r in range(robots) for t in range(trials_per_robot)
    ]


@dataclasses.dataclass(frozen=True)
class TrialResult:
    """What came of a trial. stage: where it ended, -1 where unknown.

    loss_mask: bool [T], False where a demonstrator shows an error on purpose; None under a policy.
    """

    trial: Trial
    robot_id: str
    outcome: Outcome
    reason: str
    steps: int
    stage: int
    episode: Episode | None = None
    loss_mask: np.ndarray | None = None

    @property
    def seed(self) -> int:
        return self.trial.seed

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCESS


@dataclasses.dataclass(frozen=True)
class ObservationBatch:
    """What the policy is asked: always B rows, of which `valid` ones are real and the rest repeat a real one.

    images: camera -> uint8 [B, h, w, 3]. state: float32 [B, S]. objects: float32 [B, O, P] or None. valid: bool [B].
    seed, step: int64 [B], the scene and the control step: a policy that derives its noise from them acts the same in
    whatever batch a trial lands.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    objects: np.ndarray | None
    valid: np.ndarray
    seed: np.ndarray
    step: np.ndarray


PolicyInfer = Callable[[ObservationBatch], np.ndarray]  # -> float32 [B, H, A], absolute targets


class Driver(Protocol):
    """Who acts inside the worker process in place of a policy: a scripted demonstrator."""

    def act(self) -> np.ndarray:
        """float32 [A]: the next absolute targets."""

    @property
    def deliberate_error(self) -> bool:
        """True while an error is shown on purpose."""


MakeRobot = Callable[[int], Robot]  # robot_seed -> a robot that is not yet connected; must be picklable
MakeDriver = Callable[[Any, Trial], Driver]  # (the robot just reset, the trial) -> its driver; must be picklable


@dataclasses.dataclass(frozen=True)
class RolloutOptions:
    """How trials are run.

    processes: 0 for one per core. groups: 2 lets the policy think for one half while the other half moves.
    max_steps: a trial without a verdict by then has failed. jpeg_quality: images pass through JPEG before the policy
    sees them, as on a real robot; 0 gives them raw (not where episodes are recorded). The task, prompt and
    episode_prefix go into the episodes' headers. round_deadline_s: for one round of a worker (or one whole
    demonstration); start_deadline_s: while it makes its robots.
    """

    execute_frames: int = 15
    processes: int = 0
    slots_per_process: int = 4
    groups: int = 1
    max_steps: int = 100_000
    record: bool = False
    image_stride_frames: int = 3
    jpeg_quality: int = JPEG_QUALITY
    task: str = ""
    prompt: str = ""
    episode_prefix: str = "trial"
    round_deadline_s: float = 60.0
    start_deadline_s: float = 180.0

    def __post_init__(self) -> None:
        least_1 = ("execute_frames", "slots_per_process", "groups", "max_steps", "image_stride_frames")
        bad = {name: getattr(self, name) for name in least_1 if getattr(self, name) < 1}
        if bad or self.groups > self.slots_per_process:
            raise ValueError(
                f"RolloutOptions: {bad or {'groups': self.groups}}: expected 1 <= groups <= slots_per_process"
            )
        if self.record and not self.jpeg_quality:
            raise ValueError("RolloutOptions: episodes are recorded as JPEG; give jpeg_quality > 0 with record=True")


class TrialQueue:
    """Hands out trials, to a slot that already has a robot preferably its own. Reads ahead a bounded number."""

    def __init__(self, trials: Iterable[Trial], ahead: int) -> None:
        self._source: Iterator[Trial] = iter(trials)
        self._held: collections.deque[Trial] = collections.deque()
        self._ahead = ahead

    def take(self, robot_seed: int | None) -> Trial | None:
        """The next trial; None when there is none left."""
        while len(self._held) < self._ahead and (trial := next(self._source, None)) is not None:
            self._held.append(trial)
        if not self._held:
            return None
        own = next((trial for trial in self._held if trial.robot_seed == robot_seed), self._held[0])
        self._held.remove(own)
        return own
