"""An openpi-client `Environment` (its runtime's) as a robot of a fleet. Nothing of openpi is imported here.

    def make(number: int) -> Robot:
        view = ObservationMap(state=("state",), cameras={"cam_high": "images.cam_high"}, task="", image_px=224)
        return OpenpiRobot(AlohaRealEnvironment(...), f"aloha-{number}", view, joints=JOINTS, fps_hz=50.0)

Shape letters: A action numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cel_jax.data.episode import Features, Observation, Outcome
from cel_jax.robots.adapters.mapping import ObservationMap
from cel_jax.robots.adapters.pace import Pace
from cel_jax.robots.protocol import RobotError, Verdict
from cel_jax.robots.safety import ActionGuard, SafetyLimits

Success = Callable[[Any], bool | None]


def only_a_person_knows(environment: Any) -> bool | None:
    """Episodes end when the environment says so, and wait for their label."""
    del environment
    return None


class OpenpiRobot:
    """One environment: `reset`, `is_episode_complete`, `get_observation`, `apply_action`.

    joints: for each action whether it is a joint target (relative to the state in the policy). limits: every action
    passes them; they count from the state's first A numbers. success: asked once the episode is complete.
    """

    def __init__(
        self,
        environment: Any,
        robot_id: str,
        view: ObservationMap,
        *,
        joints: tuple[bool, ...],
        fps_hz: float,
        limits: SafetyLimits,
        success: Success = only_a_person_knows,
        calibration_hash: str = "",
        pace: Pace | None = None,
    ) -> None:
        self._environment, self._id, self._view, self._joints = environment, robot_id, view, joints
        self._fps_hz, self._success, self._calibration = fps_hz, success, calibration_hash
        if len(limits.low) != len(joints):
            raise RobotError(f"robot {robot_id}: limits of {len(limits.low)} actions, joints of {len(joints)}")
        self._guard = ActionGuard(limits, 1.0 / fps_hz, robot_id)
        self._pace = pace or Pace(fps_hz)
        self._features: Features | None = None

    @property
    def robot_id(self) -> str:
        return self._id

    @property
    def calibration_hash(self) -> str:
        return self._calibration

    @property
    def features(self) -> Features:
        """Measured on one observation."""
        if self._features is None:
            kind, size = type(self._environment).__name__, len(self._joints)
            seen = self._environment.get_observation()
            self._features = self._view.features(seen, self._id, kind, size, self._fps_hz, self._joints)
        return self._features

    def connect(self) -> None:
        """openpi's environments connect when they are made."""

    def reset(self, seed: int) -> None:
        del seed
        self._environment.reset()
        state = self._view.joined_state(self._environment.get_observation(), self._id)
        if len(state) < len(self._joints):
            raise RobotError(
                f"robot {self._id}: {len(state)} state numbers for {len(self._joints)} actions: the limits count from "
                "the state, which must begin with the commanded joints"
            )
        self._guard.reset(state[: len(self._joints)])
        self._pace.restart()

    def get_observation(self, with_images: bool = True) -> Observation:
        seen: Mapping[str, Any] = self._environment.get_observation()
        return self._view.observation(seen, self._id, time.monotonic(), with_images)

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """One control period. float32 [A]: what the limits let through."""
        allowed = self._guard.check(action)
        self._environment.apply_action({"actions": allowed})
        self._pace.wait()
        return allowed

    def verdict(self) -> Verdict | None:
        """None while running, and where only a person can tell."""
        if not self._environment.is_episode_complete():
            return None
        won = self._success(self._environment)
        return None if won is None else Verdict(Outcome.SUCCESS if won else Outcome.FAILURE, "the environment's")

    def stage(self) -> int:
        return -1

    def disconnect(self) -> None:
        close = getattr(self._environment, "close", None)
        if close is not None:
            close()
