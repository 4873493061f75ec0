"""A sign of life in a file, for the launcher, which restarts a controller or agent whose pulse stands still."""

from __future__ import annotations

import time
from pathlib import Path

INTERVAL_S = 0.5


class Pulse:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        self._path, self._count, self._next_s = path, 0, 0.0

    def beat(self) -> None:
        """Changes the file, at most every INTERVAL_S."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._count, self._next_s = self._count + 1, now_s + INTERVAL_S
            self._path.write_text(f"{now_s:.3f} {self._count}")


class PulseWatch:
    """The reader's side; it needs no common clock."""

    def __init__(self, path: Path, now_s: float) -> None:
        self._path, self._seen, self._since_s = path, "", now_s

    def still_s(self, now_s: float) -> float:
        """Seconds since the pulse changed."""
        text = self._path.read_text() if self._path.exists() else ""
        if text != self._seen:
            self._seen, self._since_s = text, now_s
        return now_s - self._since_s
