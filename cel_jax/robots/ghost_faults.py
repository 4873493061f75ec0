"""Faults injected into a ghost: whoever writes <run>/faults/<station> chooses what happens to it from now on.

driver   its driver raises        dead_camera    no frame arrives
frozen_camera  the same frame again and again    clock:<seconds>  its process's wall clock jumps
memory   its process takes memory without end (give it a limit first)
away     no new process can reach the robot (its host, its link or its power is gone); one that runs goes on
Removing the file ends the fault (a clock stays where it jumped to).
"""

from __future__ import annotations

import time
from pathlib import Path

from cel_jax.robots.protocol import RobotError

LOOK_EVERY_S = 0.1
LEAK_BYTES = 4 << 20
LEAK_LIMIT_BYTES = 512 << 20  # where no limit was set the leak stops


class FaultFile:
    """Looks at the file about ten times a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._kind, self._next_s, self._jumped = path, "", 0.0, ""

    def raise_away(self, robot_id: str) -> None:
        """Raises where the robot cannot be reached."""
        if self._look() == "away":
            raise RobotError(f"robot {robot_id}: injected: it does not answer; check its host, link and power")

    def raise_due(self, robot_id: str) -> None:
        """Raises the injected fault, if one is due."""
        kind = self._look()
        if kind == "driver":
            raise RuntimeError(f"robot {robot_id}: injected: the driver's bus returned error 0x21")
        if kind == "dead_camera":
            raise RobotError(f"robot {robot_id}: injected: camera head gives no frame; check its cable")
        if kind == "memory":
            _take_memory()
        if kind.startswith("clock:") and kind != self._jumped:
            self._jumped = kind
            _jump(float(kind.removeprefix("clock:")))

    def is_frozen(self) -> bool:
        return self._look() == "frozen_camera"

    def _look(self) -> str:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LOOK_EVERY_S
            try:
                self._kind = self._path.read_text().strip()
            except FileNotFoundError:
                self._kind = ""
        return self._kind


def _take_memory() -> None:
    """Takes memory until the kernel ends this process; raises MemoryError where it does not."""
    taken: list[bytes] = []
    while len(taken) * LEAK_BYTES < LEAK_LIMIT_BYTES:
        taken.append(b"\1" * LEAK_BYTES)
    raise MemoryError(f"injected: {LEAK_LIMIT_BYTES} bytes were taken and no limit ended this process")


def _jump(seconds: float) -> None:
    """The wall clock of this process jumps, as after a late NTP step; the monotonic clock does not."""
    real = time.time
    time.time = lambda: real() + seconds
