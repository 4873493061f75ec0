"""The control period of robots that do not keep one themselves."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Waits until the next tick; a late tick is not caught up with, so that commands never come in a burst."""

    def __init__(
        self, fps_hz: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not fps_hz > 0:
            raise ValueError(f"fps_hz must be above 0, got {fps_hz}")
        self._period_s, self._clock, self._sleep = 1.0 / fps_hz, clock, sleep
        self._next_s = clock() + self._period_s

    def restart(self) -> None:
        """The next tick is one period from now."""
        self._next_s = self._clock() + self._period_s

    def wait(self) -> None:
        """Blocks until the tick."""
        now = self._clock()
        if self._next_s > now:
            self._sleep(self._next_s - now)
        self._next_s = max(self._next_s, now) + self._period_s
