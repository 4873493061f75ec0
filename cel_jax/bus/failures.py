"""Failures that SwarmLink reports upwards (paper 3.3.1: failures flow up)."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Failure:
    """kind: peer_lost, deadline, handler_failed, transfer_failed, thread_died. station: the peer's."""

    kind: str
    station: str
    endpoint: str
    detail: str


OnFailure = Callable[[Failure], None]


class Counters:
    """Named counts of what was dropped, refused or repeated. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
