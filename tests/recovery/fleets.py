"""Runs a small fleet under a real launcher in a process of its own, and waits on what run.db says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cel_jax.config import RecoveryConfig
from cel_jax.recovery import process, rundb, rundb_fleet, settings
from cel_jax.recovery.journal import read_journal
from cel_jax.recovery.stations import Placement, Role, Station, station_from_dict, station_to_dict
from cel_jax.recovery.status import StationStatus, Status

TINY = str(Path(__file__).with_name("tiny_worker.py"))
RECOVERY = RecoveryConfig(
    heartbeat_s=0.1, environment_timeout_s=3.0, inference_timeout_s=3.0, training_timeout_s=3.0, store_timeout_s=3.0,
    backoff_s=0.1, max_backoff_s=1.0,
)  # fmt: skip
FLEET = settings.FleetSettings(RECOVERY, stop_deadline_s=10.0, agent_timeout_s=20.0, hang_timeout_s=5.0)


def gone(pid: int) -> bool:
    """True when nothing runs under this number; a zombie, which its new parent has not reaped yet, runs nothing."""
    found = process.stat(pid)
    return found is None or found.state == "Z"


def station(name: str, role: Role = Role.ENVIRONMENT, mode: str = "serve", **kwargs: Any) -> Station:
    robot = kwargs.pop("robot", None)
    place = Placement(argv=(sys.executable, TINY, mode), robot=robot, safe_stop=kwargs.pop("safe_stop", ()))
    return Station(name, role, place, **kwargs)


class Fleet:
    """A launcher process and its run folder."""

    def __init__(self, run_dir: Path, stations: Sequence[Station], fleet: settings.FleetSettings) -> None:
        self.run_dir = run_dir
        self.db = rundb.open_db(run_dir)
        text = json.dumps([station_to_dict(each) for each in stations])
        settings.save(run_dir, fleet)
        self._err = open(run_dir / "launcher.err", "wb")  # noqa: SIM115
        self.launcher = subprocess.Popen(
            [sys.executable, __file__, str(run_dir), text], env=settings.child_env(), stderr=self._err
        )  # fmt: skip

    def status(self) -> Status:
        return rundb_fleet.read_status(self.db)

    def of(self, name: str) -> StationStatus:
        return self.status().of(name)

    def wait(self, condition: Callable[[], Any], deadline_s: float = 30.0) -> float:
        """Waits for a condition, returns the seconds it took, fails with the fleet's state at the deadline."""
        start_s = time.monotonic()
        end_s = start_s + deadline_s
        while not condition():
            late = time.monotonic() > end_s or (self.launcher.poll() not in (None, -signal.SIGKILL) and not condition())
            assert not late, f"{self.status()}\n{self.stderr()}\n{self.logs()}"
            time.sleep(0.01)
        return time.monotonic() - start_s

    def wait_ready(self, *names: str, deadline_s: float = 30.0) -> dict[str, StationStatus]:
        self.wait(lambda: all(self.is_ready(name) for name in names), deadline_s)
        return {name: self.of(name) for name in names}

    def is_ready(self, name: str) -> bool:
        return self.in_state(name, "ready")

    def in_state(self, name: str, state: str) -> bool:
        """False too before the launcher has entered the station in run.db."""
        return any(each.name == name and each.state == state for each in self.status().stations)

    def replaced(self, before: StationStatus) -> bool:
        now = self.of(before.name)
        return now.state == "ready" and now.worker != before.worker and now.pid != before.pid

    def child_pid(self, module: str) -> int:
        """The launcher's child that runs this module."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()
        for pid in children:
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        return 0

    def stop(self, deadline_s: float = 30.0) -> int:
        self.launcher.send_signal(signal.SIGTERM)
        return self.launcher.wait(deadline_s)

    def stderr(self) -> str:
        return (self.run_dir / "launcher.err").read_text()

    def logs(self) -> str:
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in (self.run_dir / "logs").glob("*.log"))

    def left(self) -> list[int]:
        """Processes of this run that are alive: by their command line or environment."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._mine(pid)]

    def _mine(self, pid: int) -> bool:
        found = process.stat(pid)
        if found is None or found.state == "Z" or pid == os.getpid():
            return False
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return str(self.run_dir).encode() in text

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = read_journal(self.run_dir / "control" / "agent-local.jsonl")
        return [event for event in found if event["kind"] == kind]

    def close(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait(10)
        assert process.wait_until(lambda: not self.left(), 10.0), f"left behind: {self.left()}"
        self._err.close()
        self.db.close()


@contextlib.contextmanager
def running(tmp_path: Path, *stations: Station, fleet: settings.FleetSettings = FLEET) -> Iterator[Fleet]:
    """A fleet, killed and checked for orphans at the end whatever happened."""
    fleet_run = Fleet(tmp_path / "run", stations, fleet)
    try:
        yield fleet_run
    finally:
        fleet_run.close()


def main() -> int:
    from cel_jax.recovery import launcher

    run_dir = Path(sys.argv[1])
    stations = [station_from_dict(each) for each in json.loads(sys.argv[2])]

    def on_tick(status: Status) -> bool:
        return bool(1 / (not (run_dir / "raise").exists())) and (run_dir / "end").exists()

    return launcher.run(run_dir, stations, on_tick, settings.load(run_dir))


if __name__ == "__main__":
    sys.exit(main())
