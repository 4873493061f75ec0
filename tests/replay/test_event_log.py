"""The event log: what a crash may cost (an unacknowledged event) and what it may not."""

from __future__ import annotations

import os

import pytest

from cel_jax.replay.event_log import EventLog, EventLogError


def _filled(path) -> list:
    log = EventLog.open(path)
    for i in range(5):
        log.append("evict", {"episode": f"e{i}", "reason": "ünï\n"})
    log.close()
    return log.events


def test_events_come_back_numbered(tmp_path) -> None:
    events = _filled(tmp_path / "log")
    log = EventLog.open(tmp_path / "log")
    assert log.events == events and log.head == 5 and [e.number for e in events] == [1, 2, 3, 4, 5]
    assert log.append("x", {}).number == 6 and EventLog.open(tmp_path / "log").head == 6


def test_any_cut_loses_only_the_last_line(tmp_path) -> None:
    path = tmp_path / "log"
    events = _filled(path)
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        log = EventLog.open(path)
        whole = sum(end <= cut for end in ends)
        assert log.events == events[:whole]
        assert log.torn_bytes == cut - ([0, *ends][whole]) and path.stat().st_size == cut - log.torn_bytes
        log.append("next", {})
        log.close()
        assert EventLog.open(path).head == whole + 1


def test_damage_in_the_middle_is_an_error(tmp_path) -> None:
    path = tmp_path / "log"
    _filled(path)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(EventLogError, match=r"line 1 at byte 0"):
        EventLog.open(path)
    lines = bytes(data).split(b"\n")
    path.write_bytes(b"\n".join(lines[2:]))
    with pytest.raises(EventLogError, match=r"line 1 .* misplaced"):
        EventLog.open(path)


def test_an_event_is_on_disk_when_append_returns(tmp_path, monkeypatch) -> None:
    log, synced = EventLog.open(tmp_path / "log"), []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append((tmp_path / "log").stat().st_size), real(fd))[1])
    log.append("a", {})
    assert synced == [(tmp_path / "log").stat().st_size] and synced[0] > 0
