"""Operating-system side of a worker: start, kill for certain, recognise after a restart, read its last words."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SPAWN = str(Path(__file__).with_name("spawn.py"))
TAIL_BYTES = 32_768
MAX_CAUSE_CHARS = 8_000


class RobotBusy(RuntimeError):
    """Another process holds the robot's lock."""


def start(argv: Sequence[str], env: dict[str, str], log: Path, keep_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own that dies with the calling thread; output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", SPAWN, str(os.getpid()), *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(keep_fds),
        )


@dataclasses.dataclass(frozen=True)
class ProcessStat:
    """One process: start_ticks since boot, and the kernel's state letter."""

    pid: int
    start_ticks: int
    state: str


def stat(pid: int) -> ProcessStat | None:
    """From /proc; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(pid, int(fields[19]), fields[0])


def start_ticks(pid: int) -> int:
    """The kernel's start time of a process, 0 if it is gone already."""
    found = stat(pid)
    return 0 if found is None else found.start_ticks


def left_behind(pid: int, ticks: int, worker: str) -> list[int]:
    """Processes of a recorded worker that still run: the very process (pid and start time), and everything that
    inherited its identity in CEL_WORKER. So a reused number is never taken for it, and a detached child is found."""
    found = []
    for entry in os.listdir("/proc"):
        process = stat(int(entry)) if entry.isdigit() else None
        if process is None or process.state == "Z":
            continue
        itself = process.pid == pid and process.start_ticks == ticks
        if itself or _carries(process.pid, worker):
            found.append(process.pid)
    return found


def _carries(pid: int, worker: str) -> bool:
    try:
        return f"CEL_WORKER={worker}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def fence(pid: int, ticks: int, worker: str, deadline_s: float = 10.0) -> int:
    """Kills what a recorded worker left behind and returns how many there were once none is left.

    Raises TimeoutError if one survives SIGKILL for `deadline_s` (a process stuck in the kernel).
    """
    count = kill_all(pid, ticks, worker)
    gone = wait_until(lambda: not kill_all(pid, ticks, worker), deadline_s)
    if not gone:
        alive = left_behind(pid, ticks, worker)
        raise TimeoutError(f"worker {worker}: processes {alive} survive SIGKILL for {deadline_s} s; check the machine")
    return count


def kill_all(pid: int, ticks: int, worker: str) -> int:
    """SIGKILL to whatever a recorded worker left behind; how many processes that were."""
    alive = left_behind(pid, ticks, worker)
    for each in alive:
        signal_process(each, signal.SIGKILL)
    return len(alive)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Sends a signal; nothing if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_until(condition: Callable[[], bool], deadline_s: float, step_s: float = 0.01) -> bool:
    """Polls a condition that nothing can be waited on; False at the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def lock_file(path: Path) -> int:
    """An exclusive lock, held until every process that has the returned descriptor closed it. Raises RobotBusy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RobotBusy(f"{path} is locked by another process; end it, then try again") from error
    return descriptor


def close(descriptor: int) -> None:
    """Gives up this process's copy of a lock."""
    os.close(descriptor)


def describe_exit(returncode: int) -> str:
    """`exit code 3` or `signal SIGKILL`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def last_words(log: Path) -> str:
    """The end of a log from its last traceback on (with the tracebacks that it chains to); else its last 20 lines."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = text.rstrip().splitlines()
    first = _first_traceback(lines)
    return "\n".join(lines[first:] if first is not None else lines[-20:])[-MAX_CAUSE_CHARS:]


CHAINS = ("During handling of the above", "The above exception was the direct cause")


def _first_traceback(lines: Sequence[str]) -> int | None:
    starts = [i for i, line in enumerate(lines) if line.startswith(("Traceback (most recent", "Fatal Python error"))]
    if not starts:
        return None
    first = starts[-1]
    for earlier in reversed(starts[:-1]):
        if not any(line.startswith(CHAINS) for line in lines[earlier:first]):
            break
        first = earlier
    return first
