"""An agent's journal: one JSON event per line, on disk before it is acted upon.

It lets a restarted agent find what its predecessor left running, and a restarted controller catch up.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Events numbered from 1. A torn last line (a crash while writing) is cut off; any other damage raises."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.events = read_journal(path)
        self._file = open(path, "ab")  # noqa: SIM115 - lives as long as the agent
        self._file.truncate(sum(len(_line(event)) for event in self.events))

    @property
    def last_seq(self) -> int:
        return len(self.events)

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Writes an event and returns it once it is on disk."""
        event = {"seq": self.last_seq + 1, "kind": kind, "time_s": time.time(), **fields}
        self._file.write(_line(event))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.events.append(event)
        return event

    def since(self, seq: int, limit: int = 200) -> list[dict[str, Any]]:
        """At most `limit` events after number `seq`."""
        return self.events[seq : seq + limit]

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The events of a journal; [] if there is none. Raises ValueError naming a damaged line that is not the last."""
    if not path.exists():
        return []
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    events = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        event = _parse(line, path, number)
        events.append(event)
    return events


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}: line {number} is no JSON event: {line[:80]!r}; restore or move the file") from error
    if event.get("seq") != number:
        raise ValueError(f"{path}: line {number} carries number {event.get('seq')}; restore or move the file")
    return event


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
