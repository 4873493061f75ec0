"""Any robot with an account of its own of what it did: the same facts that ghosts write, see ghost_ledger.py.

For counting after faults: what is compared with stores and spools must not come from the system that is tested.
"""

from __future__ import annotations

import hashlib
import time

import numpy as np

from cel_jax.data.episode import Features, Observation
from cel_jax.robots.ghost_ledger import Ledger
from cel_jax.robots.protocol import Robot, Verdict

PAUSE_NOTED_S = 1.0


class LedgeredRobot:
    """Passes everything on and writes it down. It cannot tell stale actions: a real policy's carry no mark."""

    def __init__(self, robot: Robot, ledger: Ledger) -> None:
        self._robot, self._ledger = robot, ledger
        self._digest, self._frames, self._state = hashlib.sha256(), 0, np.zeros(0, np.float32)
        self._last_act_s = time.monotonic()

    @property
    def robot_id(self) -> str:
        return self._robot.robot_id

    @property
    def calibration_hash(self) -> str:
        return self._robot.calibration_hash

    @property
    def features(self) -> Features:
        return self._robot.features

    def connect(self) -> None:
        self._robot.connect()
        self._ledger.write("connect")

    def reset(self, seed: int) -> None:
        self._robot.reset(seed)
        self._digest, self._frames, self._last_act_s = hashlib.sha256(), 0, time.monotonic()
        self._ledger.write("reset")

    def get_observation(self, with_images: bool = True) -> Observation:
        seen = self._robot.get_observation(with_images)
        self._state = np.asarray(seen.state, np.float32)
        return seen

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """float32 [A]: what was executed, which is what the digest holds."""
        self._note_pause()
        executed = self._robot.send_action(action)
        self._digest.update(self._state.tobytes() + np.asarray(executed, np.float32).tobytes())
        self._frames += 1
        return executed

    def _note_pause(self) -> None:
        now_s = time.monotonic()
        pause_s, self._last_act_s = now_s - self._last_act_s, now_s
        if self._frames == 0:
            self._ledger.write("act")
        elif pause_s > PAUSE_NOTED_S:
            self._ledger.write("pause", seconds=round(pause_s, 3))

    def verdict(self) -> Verdict | None:
        found = self._robot.verdict()
        if found is not None:
            self._ledger.write(
                "verdict", outcome=found.outcome.value, digest=self._digest.hexdigest(), frames=self._frames
            )
        return found

    def on_labelled(self, episode: str) -> None:
        """The label is durable; from here on this episode must never be lost."""
        self._ledger.write("labelled", episode=episode, digest=self._digest.hexdigest())

    def stage(self) -> int:
        return self._robot.stage()

    def disconnect(self) -> None:
        self._robot.disconnect()
        self._ledger.write("disconnect")
