"""Locks, last words, fencing, the journal, and a worker whose agent is gone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cel_jax.bus.identity import Identity
from cel_jax.recovery import process, wire
from cel_jax.recovery.beat import ORPHAN_EXIT_CODE, WorkerContext, WorkerSettings
from cel_jax.recovery.journal import Journal, read_journal
from cel_jax.recovery.stations import Placement, interpreter, resolve_argv
from cel_jax.recovery.wire import WireError
from tests.recovery.fleets import gone

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def test_robot_lock_lasts_as_long_as_the_worker_that_inherited_it(tmp_path: Path) -> None:
    lock = tmp_path / "robot-0.lock"
    descriptor = process.lock_file(lock)
    worker = process.start(SLEEP, dict(os.environ), tmp_path / "log", [descriptor])
    process.close(descriptor)
    with pytest.raises(process.RobotBusy, match=r"robot-0\.lock"):
        process.lock_file(lock)
    worker.kill()
    worker.wait(10)
    process.close(process.lock_file(lock))


def test_fence_kills_the_recorded_process_and_its_kin_but_nobody_else(tmp_path: Path) -> None:
    worker = process.start(SLEEP, {**os.environ, "CEL_WORKER": "w-1"}, tmp_path / "log")
    kin = process.start(SLEEP, {**os.environ, "CEL_WORKER": "w-1"}, tmp_path / "log")
    other = process.start(SLEEP, {**os.environ, "CEL_WORKER": "w-2"}, tmp_path / "log")
    try:
        ticks = process.start_ticks(worker.pid)
        assert process.wait_until(lambda: len(process.left_behind(worker.pid, ticks, "w-1")) == 2, 5.0)
        assert process.fence(worker.pid, ticks, "w-1") == 2
        assert gone(worker.pid) and gone(kin.pid) and other.poll() is None
        assert process.fence(other.pid, process.start_ticks(other.pid) + 1, "w-3") == 0  # a reused number
        assert other.poll() is None
    finally:
        for each in (worker, kin, other):
            each.kill()
            each.wait(10)


def test_last_words_are_the_last_traceback_with_what_it_chains_to(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    code = "try:\n  open('/nope')\nexcept OSError as e:\n  raise RuntimeError('camera') from e"
    log.write_text("Traceback (most recent call last):\n  old\nValueError: handled before\nstep 1\nstep 2\n")
    process.start([sys.executable, "-c", code], dict(os.environ), log).wait(20)
    words = process.last_words(log)
    assert words.startswith("Traceback") and "FileNotFoundError" in words and words.endswith("RuntimeError: camera")
    assert "handled before" not in words
    log.write_text("\n".join(f"line {i}" for i in range(50)))
    assert process.last_words(log).splitlines() == [f"line {i}" for i in range(30, 50)]
    assert process.last_words(tmp_path / "none") == ""


def test_journal_survives_a_torn_line_and_refuses_other_damage(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    journal = Journal(path)
    journal.append("a")
    journal.append("b", station="arm-0")
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seq":3,"ki')
    again = Journal(path)
    assert [event["kind"] for event in again.events] == ["a", "b"]
    again.append("c")
    again.close()
    assert [event["seq"] for event in read_journal(path)] == [1, 2, 3]
    path.write_bytes(b"x" + whole)
    with pytest.raises(ValueError, match="line 1"):
        read_journal(path)
    path.write_bytes(json.dumps({"seq": 2, "kind": "a"}).encode() + b"\n")
    with pytest.raises(ValueError, match="carries number 2"):
        read_journal(path)


def test_worker_whose_agent_is_gone_stops_and_then_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cel_jax.recovery.beat.STOP_GRACE_S", 0.2)
    codes: list[int] = []
    identity = Identity("arm-0", "w1", "environment")
    settings = WorkerSettings(tmp_path, identity, wire.endpoint(tmp_path, "nobody"), 0.05, agent_timeout_s=0.2)
    context = WorkerContext(settings, exit_process=codes.append)
    try:
        assert context.stop_event.wait(10)
        assert process.wait_until(lambda: ORPHAN_EXIT_CODE in codes, 10)
    finally:
        context.close()


def test_worker_settings_travel_through_the_environment(tmp_path: Path) -> None:
    settings = WorkerSettings(tmp_path, Identity("arm-0", "w1", "environment"), "ipc://x", 0.25, 9.0, 3, 4)
    assert WorkerSettings.from_env(settings.to_env()) == settings
    with pytest.raises(RuntimeError, match="CEL_WORKER"):
        WorkerSettings.from_env({"CEL_RUN_DIR": "x"})


def test_endpoints_of_deep_folders_fit_the_socket_limit(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80) / ("y" * 80)
    assert len(wire.endpoint(deep, "agent-local").removeprefix("ipc://")) <= wire.MAX_IPC_PATH
    assert wire.endpoint(deep, "agent-local") == wire.endpoint(deep, "agent-local") != wire.endpoint(deep, "liveness")


def test_only_maps_are_control_messages() -> None:
    assert wire.unpack(wire.pack({"t": "beat"})) == {"t": "beat"}
    for data in (b"\xc1", b"\x93\x01\x02\x03", b"\x81"):
        with pytest.raises(WireError):
            wire.unpack(data)


def test_interpreter_of_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_argv(Placement(argv=("python", "-m", "x"))) == [sys.executable, "-m", "x"]
    monkeypatch.setenv("CEL_PYTHON_REVERB", "/opt/reverb/python")
    assert resolve_argv(Placement(environment="reverb", argv=("python",))) == ["/opt/reverb/python"]
    with pytest.raises(FileNotFoundError, match="CEL_PYTHON_MARS"):
        interpreter("mars")
