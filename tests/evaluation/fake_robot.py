"""A point that follows its targets, in numpy: success within 0.05 of the scene's goal, failure after 60 steps."""

from __future__ import annotations

import os
import signal

import numpy as np

from cel_jax.data.episode import CameraSpec, Features, Observation, Outcome
from cel_jax.evaluation.trials import ObservationBatch, Trial
from cel_jax.robots.protocol import Verdict

RAISES, DIES, HANGS = 666, 777, 888


def picture(step: int, pixels: int) -> np.ndarray:
    """Noise that tells steps apart and that JPEG alters."""
    return np.random.default_rng(step).integers(0, 256, (pixels, pixels, 3), np.uint8)


class FakeRobot:
    def __init__(self, robot_seed: int, pixels: int) -> None:
        self._seed, self._pixels, self._open = robot_seed, pixels, False

    @property
    def robot_id(self) -> str:
        return f"fake-{self._seed}"

    @property
    def calibration_hash(self) -> str:
        return f"hash-{self._seed}"

    @property
    def features(self) -> Features:
        cameras = (CameraSpec("top", self._pixels, self._pixels),) if self._pixels else ()
        return Features("fake", 2, 2, cameras, (1, 2), 30.0, (True, True))

    def connect(self) -> None:
        self._open = True

    def reset(self, seed: int) -> None:
        assert self._open
        self._scene, self._steps = seed, 0
        rng = np.random.default_rng([self._seed, seed])
        self._goal, self._state = rng.uniform(0.2, 1, 2).astype("f4"), np.zeros(2, np.float32)

    def get_observation(self, with_images: bool = True) -> Observation:
        images = {}
        if with_images and self._pixels:
            images["top"] = picture(self._steps, self._pixels)
        return Observation(images, self._state, self._goal[None], self._steps / 30)

    def send_action(self, action: np.ndarray) -> np.ndarray:
        self._fault()
        self._steps += 1
        self._state[:] += np.clip(action - self._state, -0.05, 0.05)  # the same array: it must be copied
        return self._state

    def _fault(self) -> None:
        if self._seed == RAISES:
            raise RuntimeError(f"motor of {self.robot_id} is hot")
        if self._seed == DIES:
            os._exit(3)
        if self._seed == HANGS:
            signal.pause()

    def verdict(self) -> Verdict | None:
        if np.abs(self._state - self._goal).max() < 0.05:
            return Verdict(Outcome.SUCCESS, "reached")
        return Verdict(Outcome.FAILURE, "too slow") if self._steps >= 60 else None

    def stage(self) -> int:
        return self._steps // 10

    def disconnect(self) -> None:
        self._open = False


def make_blind(robot_seed: int) -> FakeRobot:
    return FakeRobot(robot_seed, 0)


def make_seeing(robot_seed: int) -> FakeRobot:
    return FakeRobot(robot_seed, 16)


class GoToGoal:
    """A driver; its first three steps are errors on purpose."""

    def __init__(self, robot: FakeRobot, trial: Trial) -> None:
        self._robot, self._acted = robot, 0

    def act(self) -> np.ndarray:
        self._acted += 1
        return self._robot.get_observation(False).objects[0]  # type: ignore[index]

    @property
    def deliberate_error(self) -> bool:
        return self._acted <= 3


def solve(batch: ObservationBatch) -> np.ndarray:
    """Goes to the goal in even scenes and stays at home in odd ones."""
    assert batch.objects is not None
    target = np.where(batch.seed[:, None] % 2 == 0, batch.objects[:, 0], 0.0)
    return np.repeat(target[:, None], 8, 1)
