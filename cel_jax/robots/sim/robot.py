"""The simulated robot behind the five methods of `cel_jax.robots.protocol.Robot`."""

from __future__ import annotations

import time

import numpy as np

from cel_jax.data.episode import Features, Observation
from cel_jax.robots.protocol import RobotError, Verdict
from cel_jax.robots.sim.calibration import CalibrationSpread
from cel_jax.robots.sim.world import PERIOD_S, PackagingWorld, TaskParams


class SimulatedRobot:
    """One robot instance. Runs as fast as it can, or at 30 Hz with `real_time`."""

    def __init__(
        self,
        robot_seed: int,
        mode: str = "images",
        params: TaskParams | None = None,
        real_time: bool = False,
        spread: CalibrationSpread | None = None,
    ) -> None:
        self.world = PackagingWorld(robot_seed, mode, params, spread)
        self._real_time = real_time
        self._connected = self._running = False
        self._next_tick_s = 0.0

    @property
    def robot_id(self) -> str:
        return self.world.calibration.robot_id

    @property
    def calibration_hash(self) -> str:
        return self.world.calibration.hash

    @property
    def features(self) -> Features:
        return self.world.features

    def connect(self) -> None:
        """Opens the cameras in `images` mode: a missing GL shows here and not in the first episode."""
        if self.world.mode == "images":
            self.world.open_cameras()
        self._connected = True

    def reset(self, seed: int) -> None:
        """Places a new scene; the same seed gives the same scene and start pose."""
        if not self._connected:
            raise RobotError(f"robot {self.robot_id}: reset before connect; call connect() first")
        self.world.reset(seed)
        self._running = True
        self._next_tick_s = time.monotonic() + PERIOD_S

    def get_observation(self, with_images: bool = True) -> Observation:
        """The present observation; images are rendered only when asked for. Its clock counts from the reset."""
        self._check_running("get_observation")
        return self.world.observe(with_images)

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """One control period; returns float32 [16], what was executed after every limit."""
        self._check_running("send_action")
        executed = self.world.step(action)
        if self._real_time:
            self._throttle()
        return executed

    def verdict(self) -> Verdict | None:
        return self.world.verdict() if self._running else None

    def stage(self) -> int:
        """0..9 while a step is worked on, 9 after success (it stays the last step), -1 before the first reset."""
        return min(self.world.stage(), 9) if self._running else -1

    def disconnect(self) -> None:
        """Stops; safe to call twice."""
        self._connected = self._running = False

    def _check_running(self, call: str) -> None:
        if not self._running:
            raise RobotError(f"robot {self.robot_id}: {call} before reset; call connect() and reset(seed) first")

    def _throttle(self) -> None:
        now = time.monotonic()
        if self._next_tick_s > now:
            time.sleep(self._next_tick_s - now)
        self._next_tick_s = max(self._next_tick_s + PERIOD_S, now)
