"""The five methods by which a robot joins a fleet.

robot.connect()
try:
    robot.reset(seed)
    while robot.verdict() is None:
        observation = robot.get_observation()
        sent = robot.send_action(action)      # what was really executed: this is recorded
finally:
    robot.disconnect()                        # safe stop

A robot whose `reset` takes long may have `emergency_stop()`: called from another thread, it returns at once and makes
the call that is under way end soon. Without it, a call that outlasts a stop by two seconds ends its worker.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np

from cel_jax.data.episode import Features, Observation, Outcome


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An outcome that the robot's own side knows (a simulator, a detector); None elsewhere."""

    outcome: Outcome
    reason: str


@runtime_checkable
class Robot(Protocol):
    """A robot as the fleet sees it. A LeRobot robot fits by its methods."""

    @property
    def robot_id(self) -> str: ...

    @property
    def calibration_hash(self) -> str: ...

    @property
    def features(self) -> Features: ...

    def connect(self) -> None:
        """Opens the robot. Raises `RobotError` naming the robot and what to check."""

    def reset(self, seed: int) -> None:
        """Returns when the scene is ready for an episode. A real robot waits for its operator."""

    def get_observation(self, with_images: bool = True) -> Observation:
        """The present observation. Raises `StaleFrame` for a frame older than its deadline."""

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """Takes float32 [A] absolute targets, blocks for one control period, returns what was executed."""

    def verdict(self) -> Verdict | None:
        """The outcome where the robot's side can tell it; None while running or where only a person can."""

    def stage(self) -> int:
        """The task's stage for analysis, -1 where unknown. Never given to a policy."""

    def disconnect(self) -> None:
        """Stops safely. Called in `finally`; must not raise when already stopped."""


class RobotError(RuntimeError):
    """A fault of one robot: one station's event, never the fleet's."""


class StaleFrame(RobotError):
    """A camera gave a frame older than its deadline. It is never repeated as an observation."""
