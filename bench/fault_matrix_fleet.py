"""A fleet of ghosts under `launch.fleet`, and what the fault matrix needs to see and to break of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CGROUP = Path("/sys/fs/cgroup/memory")


class FleetEnded(RuntimeError):
    """The fleet ended by itself; the message ends with its last words."""


class GhostFleet:
    """A running fleet and its ledgers. Close it, then count it."""

    def __init__(self, folder: Path, name: str, robots: int, *more: str, config: str = "ghosts") -> None:
        self.run_dir, self.robots = folder / name, robots
        self._log_path = folder / f"{name}.log"
        self._log = open(self._log_path, "w")  # noqa: SIM115  kept open for the child
        command = [
            sys.executable, "-m", "launch.fleet", f"--config={config}", f"--robots={robots}", f"--runs={folder}",
            f"--run={name}", "--minutes=600", "--noevaluate", *more,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=subprocess.STDOUT)
        self._offsets: dict[str, int] = {}
        self._facts: dict[str, list[dict[str, Any]]] = {}
        self._mounts: list[Path] = []
        self.joined: dict[str, Path] = {}  # node -> its run folder

    # -- what it says of itself: only to find processes and causes, never to count ---------------------------------

    def rows(self, query: str, args: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Reads run.db; [] before it exists."""
        path = self.run_dir / "run.db"
        if not path.exists():
            return []
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
        db.row_factory = sqlite3.Row
        try:
            return db.execute(query, args).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            db.close()

    def worker(self, station: str) -> tuple[str, int]:
        """Worker id and pid of a station's ready worker; ('', 0) while it has none."""
        found = self.rows("SELECT worker, pid FROM stations WHERE name = ? AND state = 'ready'", (station,))
        return (found[0]["worker"], int(found[0]["pid"])) if found else ("", 0)

    def cause(self, station: str, worker: str) -> str:
        """What is on record of a worker's end, in one line: the exception, or how the kernel ended it."""
        found = self.rows("SELECT cause FROM incidents WHERE station = ? AND worker = ?", (station, worker))
        lines = found[0]["cause"].strip().splitlines() if found else []
        if not lines:
            return ""
        return lines[-1] if lines[0].startswith("exit code") else lines[0]

    def child_pid(self, word: str) -> int:
        """The launcher's controller or agent."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if word.encode() in words or f"cel_jax.recovery.{word}".encode() in words:
                    return int(pid)
        return 0

    # -- the ledgers -------------------------------------------------------------------------------------------------

    def facts(self, station: str) -> list[dict[str, Any]]:
        """All facts of one ghost so far; only what is new is read."""
        folder = self.joined.get(station.partition("-robot-")[0], self.run_dir)
        path, known = folder / "ledger" / f"{station}.jsonl", self._facts.setdefault(station, [])
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._offsets.get(station, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offsets[station] = self._offsets.get(station, 0) + len(whole)
            known.extend(json.loads(line) for line in whole.splitlines())
        return known

    def since(self, station: str, since_s: float, *kinds: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts(station) if fact["time_s"] >= since_s and fact["fact"] in kinds]

    @property
    def stations(self) -> list[str]:
        return [f"robot-{index:02d}" for index in range(self.robots)]

    def acting(self, stations: Sequence[str], since_s: float) -> bool:
        """Whether each of these acted after a moment: an action is the answer to an observation on the bus."""
        return all(self.since(station, since_s, "act") for station in stations)

    # -- waiting and breaking ----------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str, deadline_s: float = 120.0) -> None:
        """Raises FleetEnded or TimeoutError naming what did not come."""
        ends_s = time.monotonic() + deadline_s
        while not condition():
            if self.process.poll() is not None:
                raise FleetEnded(f"the fleet ended while waiting for {what}:\n{self.text()[-3000:]}")
            if time.monotonic() > ends_s:
                raise TimeoutError(f"no {what} within {deadline_s:g} s:\n{self.text()[-2000:]}")
            pause(0.02)

    def wait_all_acting(self, deadline_s: float = 300.0) -> None:
        start_s = time.monotonic()
        self.wait(lambda: self.acting(self.stations, start_s - 1e9), "action of every robot", deadline_s)

    def fault(self, station: str, kind: str) -> None:
        """Injects into a ghost; '' ends it."""
        path = self.run_dir / "faults" / station
        path.parent.mkdir(exist_ok=True)
        if kind:
            path.with_suffix(".new").write_text(kind)
            os.replace(path.with_suffix(".new"), path)
        else:
            path.unlink(missing_ok=True)

    def mount_tmpfs(self, place: str, size_mb: int) -> Path:
        """A small disk of its own for a folder of the run; call it before the workers open the folder."""
        path = self.run_dir / place
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)], check=True)
        self._mounts.append(path)
        return path

    def limit_memory(self, pid: int, limit_mb: int) -> Path:
        """Puts a process in a memory cgroup (version 1) of its own."""
        group = CGROUP / f"cel-ghost-{pid}"
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_mb << 20))
        (group / "cgroup.procs").write_text(str(pid))
        return group

    def text(self) -> str:
        return self._log_path.read_text()

    def stop(self) -> int:
        """Ctrl-C, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(150)

    def close(self) -> None:
        """Kills what is left; keeps the files of small disks by copying them out before they go."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._log.close()
        for path in self._mounts:
            kept = path.with_name(path.name + ".kept")
            subprocess.run(["cp", "-a", f"{path}/.", str(kept)], check=True)
            subprocess.run(["umount", "-l", str(path)], check=True)
            subprocess.run(["cp", "-a", f"{kept}/.", str(path)], check=True)
            subprocess.run(["rm", "-r", str(kept)], check=True)
        self._mounts.clear()


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def fill_disk(folder: Path) -> Path:
    """Takes every free byte of a folder's file system; remove the returned file to give them back."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 20))
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 512)
    return path
