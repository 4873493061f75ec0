"""Everything that changes the store is a numbered event: one line appended to a file, on disk before it takes effect.

    log = EventLog.open(folder / "events.log")
    event = log.append("evict", {"episode": "e17"})     # on return it is fsynced
    for event in log.events: ...                        # after a restart: the same events

Line: CRC-32 in hexadecimal, a space, JSON with `number` and `kind`. A torn last line (a crash while writing) was never
acknowledged and is cut off; damage before it is an error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from pathlib import Path
from typing import Any


class EventLogError(RuntimeError):
    """An event log that cannot be trusted."""


@dataclasses.dataclass(frozen=True)
class Event:
    """One change of the store. Numbers count from 1 without gaps."""

    number: int
    kind: str
    data: dict[str, Any]


class EventLog:
    """An append-only log; one process has it open."""

    def __init__(self, path: Path, events: list[Event], torn_bytes: int) -> None:
        self.path, self.events, self.torn_bytes = path, events, torn_bytes
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 closed in close

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> EventLog:
        """Opens or creates a log. Raises `EventLogError` naming the first bad line."""
        target = Path(path)
        target.touch()
        data = target.read_bytes()
        events, end = _read(target, data)
        if end < len(data):
            os.truncate(target, end)
        return cls(target, events, len(data) - end)

    @property
    def head(self) -> int:
        """Number of the last event, 0 for none."""
        return len(self.events)

    def append(self, kind: str, data: dict[str, Any]) -> Event:
        """Writes an event and waits for the disk."""
        event = Event(self.head + 1, kind, data)
        line = _line(event)
        written = self._file.write(line)
        if written != len(line):
            raise EventLogError(
                f"event log {self.path}: wrote {written} of {len(line)} bytes of event {event.number}; "
                "is the disk full? Make room and restart the store"
            )
        os.fsync(self._file.fileno())
        self.events.append(event)
        return event

    def close(self) -> None:
        self._file.close()


def _line(event: Event) -> bytes:
    body = json.dumps({"number": event.number, "kind": event.kind, **event.data}, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _read(path: Path, data: bytes) -> tuple[list[Event], int]:
    events: list[Event] = []
    offset = 0
    while offset < len(data):
        stop = data.find(b"\n", offset)
        event = _parse(data[offset:stop]) if stop >= 0 else None
        if event is None and (stop < 0 or stop == len(data) - 1):
            return events, offset  # torn by a crash: never acknowledged
        if event is None or event.number != len(events) + 1:
            raise EventLogError(
                f"event log {path}: line {len(events) + 1} at byte {offset} is damaged or misplaced; "
                "restore the file from a copy, or move the store's folder away and resend its episodes"
            )
        events.append(event)
        offset = stop + 1
    return events, offset


def _parse(line: bytes) -> Event | None:
    if len(line) < 10 or line[:8] != b"%08x" % zlib.crc32(line[9:]):
        return None
    data = json.loads(line[9:])
    return Event(data.pop("number"), data.pop("kind"), data)
