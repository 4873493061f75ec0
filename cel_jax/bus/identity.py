"""Who sent a message. A station is a fixed place; a worker is one process launch that occupies it (paper 3.3.3)."""

from __future__ import annotations

import dataclasses
import threading
import uuid


@dataclasses.dataclass(frozen=True)
class Identity:
    """`worker` is unique for every process launch; `role` is e.g. environment, inference, store, controller."""

    station: str
    worker: str
    role: str


def new_worker_id() -> str:
    """An id that no other launch, on any node, has had or will have."""
    return f"w-{uuid.uuid4().hex}"


class Registry:
    """Which worker occupies each station. Retired workers stay, marked dead, so that late references are recognised.

    Thread-safe. Every check is a local look-up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[str, str] = {}
        self._dead: dict[str, str] = {}

    def admit(self, station: str, worker: str) -> str | None:
        """Puts `worker` at `station` and returns the predecessor that this retires, if any.

        Raises ValueError when the worker is already dead: ids are never used again.
        """
        with self._lock:
            if worker in self._dead:
                raise ValueError(f"station {station!r}: worker {worker!r} was retired; a relaunch needs a new id")
            predecessor = self._current.get(station)
            self._current[station] = worker
            if predecessor in (None, worker):
                return None
            self._dead[predecessor] = station  # type: ignore[index]
            return predecessor

    def retire(self, worker: str, station: str = "") -> bool:
        """Marks a worker dead, known or not. False when it already was."""
        with self._lock:
            if worker in self._dead:
                return False
            places = [place for place, occupant in self._current.items() if occupant == worker]
            for place in places:
                del self._current[place]
            self._dead[worker] = places[0] if places else station
            return True

    def current(self, station: str) -> str | None:
        """The worker at a station, or None."""
        with self._lock:
            return self._current.get(station)

    def is_current(self, identity: Identity) -> bool:
        """True when this very worker occupies the station now."""
        return self.current(identity.station) == identity.worker

    def is_dead(self, worker: str) -> bool:
        """True when the worker was retired or replaced."""
        with self._lock:
            return worker in self._dead
