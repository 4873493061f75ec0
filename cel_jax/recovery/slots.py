"""One station as its agent holds it: what is wanted, what runs there, and how it failed before."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
from pathlib import Path
from typing import Any

from cel_jax.recovery.restart_policy import Failures
from cel_jax.recovery.stations import Desired, Station, WorkerRecord


class Phase(enum.Enum):
    """FREE: nothing runs, a launch may be due. LIVE, STOPPING (asked to), DYING (killed, not yet gone), SAFE_STOP (the
    robot is stopped from outside). FINISHED: ended by itself with success. FAILED: its tier's limit is reached."""

    FREE = "free"
    LIVE = "live"
    STOPPING = "stopping"
    DYING = "dying"
    SAFE_STOP = "safe stop"
    FINISHED = "finished"
    FAILED = "failed"


@dataclasses.dataclass
class Slot:
    """Mutable state of one station; only the agent's main thread touches it. Times are monotonic seconds."""

    station: Station
    desired: Desired = Desired.OFFLINE
    grace_s: float = 10.0
    phase: Phase = Phase.FREE
    failures: Failures = dataclasses.field(default_factory=Failures)
    record: WorkerRecord | None = None
    process: subprocess.Popen[bytes] | None = None
    safe_stop: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    since_s: float = 0.0
    launched_s: float = 0.0
    beaten: bool = False
    ready: bool = False
    finished: bool = False
    told_pause: bool = False
    told_version: int = 0
    told_calls: set[str] = dataclasses.field(default_factory=set)
    note: str = ""
    cause: str = ""

    def enter(self, phase: Phase, now_s: float) -> None:
        self.phase, self.since_s = phase, now_s

    def launched(self, record: WorkerRecord, process: subprocess.Popen[bytes], log: Path, now_s: float) -> None:
        """A new worker: whatever was said to its predecessor was not said to it."""
        self.record, self.process, self.log, self.launched_s = record, process, log, now_s
        self.beaten = self.ready = self.finished = self.told_pause = False
        self.told_version, self.told_calls, self.note = 0, set(), ""
        self.enter(Phase.LIVE, now_s)

    @property
    def worker(self) -> str:
        return "" if self.record is None else self.record.identity.worker

    @property
    def occupied(self) -> bool:
        return self.phase in (Phase.LIVE, Phase.STOPPING)

    def state_name(self) -> str:
        """One word for people and run.db."""
        if self.phase is Phase.LIVE:
            paused = self.ready and self.desired is Desired.PAUSED
            return "paused" if paused else ("ready" if self.ready else "starting")
        if self.phase is Phase.FREE:
            return "offline" if self.desired is Desired.OFFLINE else "waiting"
        return self.phase.value

    def status(self, now_s: float) -> dict[str, Any]:
        """Plain values for the controller."""
        waiting = self.phase is Phase.FREE and self.desired is not Desired.OFFLINE
        return {
            "station": self.station.name,
            "state": self.state_name(),
            "worker": self.worker if self.occupied else "",
            "pid": self.record.pid if self.record is not None and self.occupied else 0,
            "failures": self.failures.total,
            "cause": self.cause,
            "note": self.note,
            "retry_in_s": max(0.0, self.failures.retry_at_s - now_s) if waiting else 0.0,
        }
