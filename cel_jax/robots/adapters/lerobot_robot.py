"""A LeRobot `Robot` (so100, koch, aloha, ...) as a robot of a fleet. Nothing of lerobot is imported here.

    def make(number: int) -> Robot:
        arm = SO101Follower(SO101FollowerConfig(port=PORTS[number], cameras=CAMERAS[number]))
        limits = SafetyLimits(low=..., high=..., max_velocity=..., max_step=...)
        return LeRobotRobot(arm, f"so101-{number}", limits, fps_hz=30.0, home=HOME, image_px=224)

Its dictionaries of single motors become arrays in the order of `action_features`. Shape letters: A action numbers.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cel_jax.data.episode import CameraSpec, Features, Observation
from cel_jax.robots.adapters.mapping import ObservationMap
from cel_jax.robots.adapters.pace import Pace
from cel_jax.robots.protocol import RobotError, Verdict
from cel_jax.robots.safety import ActionGuard, SafetyLimits

Reset = Callable[[], None]
HOMING_S = 20.0


def no_reset() -> None:
    """The scene is as the operator left it."""


class LeRobotRobot:
    """One connected arm, or pair of arms. Every action passes the limits; what the driver says it sent is recorded.

    limits: of the actions, in the driver's units. home: a pose [A] that is driven to, within the limits, before an
    episode. reset_scene: returns when the scene is ready. task: whose crops images get. absolute: actions that are not
    joint targets (grippers by their names, by default) and stay absolute in the policy.
    """

    def __init__(
        self,
        robot: Any,
        robot_id: str,
        limits: SafetyLimits,
        *,
        fps_hz: float = 30.0,
        home: tuple[float, ...] | None = None,
        reset_scene: Reset = no_reset,
        task: str = "",
        image_px: int = 224,
        pace: Pace | None = None,
    ) -> None:
        self._robot, self._id, self._fps_hz, self._home, self._reset_scene = robot, robot_id, fps_hz, home, reset_scene
        self._motors, self._cameras = tuple(robot.action_features), _cameras(robot)
        _check_size(robot_id, "limits", len(limits.low), self._motors)
        if home is not None:
            _check_size(robot_id, "home", len(home), self._motors)
        self._view = ObservationMap(_numbers(robot), {name: name for name in self._cameras}, "", task, image_px)
        self._guard = ActionGuard(limits, 1.0 / fps_hz, robot_id)
        self._image_px, self._pace = image_px, pace or Pace(fps_hz)
        self._halted = threading.Event()

    @property
    def robot_id(self) -> str:
        return self._id

    @property
    def calibration_hash(self) -> str:
        """Of LeRobot's calibration of every motor."""
        calibration = {name: str(value) for name, value in (getattr(self._robot, "calibration", None) or {}).items()}
        return hashlib.sha256(json.dumps(calibration, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def features(self) -> Features:
        cameras = tuple(CameraSpec(name, self._image_px, self._image_px) for name in self._cameras)
        joints = tuple("gripper" not in motor for motor in self._motors)
        kind = str(getattr(self._robot, "name", type(self._robot).__name__))
        return Features(kind, len(self._view.state), len(self._motors), cameras, None, self._fps_hz, joints)

    def connect(self) -> None:
        try:
            self._robot.connect()
        except Exception as error:
            raise RobotError(
                f"robot {self._id}: cannot connect ({type(error).__name__}: {error}); check power, cable and port"
            ) from error

    def reset(self, seed: int) -> None:
        """Drives home and waits for the scene. The seed is for simulators."""
        del seed
        self._halted.clear()
        self._guard.reset(self._position())
        self._pace.restart()
        if self._home is not None:
            self._drive(np.asarray(self._home, np.float32))
        self._reset_scene()
        self._guard.reset(self._position())
        self._pace.restart()

    def get_observation(self, with_images: bool = True) -> Observation:
        return self._view.observation(self._robot.get_observation(), self._id, time.monotonic(), with_images)

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """One control period. float32 [A]: what the driver says it sent, after our limits and its own."""
        allowed = self._guard.check(action)
        sent = self._robot.send_action(dict(zip(self._motors, allowed.tolist(), strict=True)))
        self._pace.wait()
        return np.array([sent.get(motor, allowed[i]) for i, motor in enumerate(self._motors)], np.float32)

    def verdict(self) -> Verdict | None:
        """Only a person can tell."""
        return None

    def stage(self) -> int:
        return -1

    def emergency_stop(self) -> None:
        """Ends a drive home; from any thread."""
        self._halted.set()

    def disconnect(self) -> None:
        """LeRobot lets go of the motors here. Safe to call twice."""
        if getattr(self._robot, "is_connected", True):
            self._robot.disconnect()

    def _drive(self, target: np.ndarray) -> None:
        """Sends the target until limits and driver let it through whole. Raises `RobotError` where they never do."""
        for _ in range(round(HOMING_S * self._fps_hz)):
            if self._halted.is_set():
                raise RobotError(f"robot {self._id}: stopped on its way home")
            sent = self.send_action(target)
            if np.allclose(sent, target, atol=1e-3):
                return
        raise RobotError(
            f"robot {self._id}: not home after {HOMING_S:g} s: sent {sent.tolist()}, home is {target.tolist()}; check "
            "that home lies within the limits, and the driver's own limit of a step"
        )

    def _position(self) -> np.ndarray:
        """Where the motors are [A]: what the limits count from."""
        values = self._robot.get_observation()
        missing = [motor for motor in self._motors if motor not in values]
        if missing:
            raise RobotError(f"robot {self._id}: its observation lacks the motors {missing}; it has {sorted(values)}")
        return np.array([values[motor] for motor in self._motors], np.float32)


def _cameras(robot: Any) -> tuple[str, ...]:
    """Entries whose feature is a shape, not a number."""
    return tuple(name for name, kind in robot.observation_features.items() if isinstance(kind, tuple))


def _numbers(robot: Any) -> tuple[str, ...]:
    features: Mapping[str, Any] = robot.observation_features
    return tuple(name for name, kind in features.items() if not isinstance(kind, tuple))


def _check_size(robot_id: str, what: str, size: int, motors: tuple[str, ...]) -> None:
    if size != len(motors):
        raise RobotError(
            f"robot {robot_id}: {what} have {size} numbers, its actions {len(motors)}: {', '.join(motors)}"
        )
