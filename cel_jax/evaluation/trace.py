"""What a recorded run says of its robots: finished episodes, downtimes, sessions. Read from run.db; times in seconds
since 1970."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from cel_jax.evaluation.trace_replay import RobotTrace
from cel_jax.recovery import rundb
from cel_jax.recovery.stations import Role

SESSION_GAP_S = 600.0  # a fleet that finishes nothing for so long had a break: sessions are replayed apart
GROUP_WINDOW_S = 120.0  # incidents that began within it share a cause (paper, appendix on recovery cost)


@dataclasses.dataclass(frozen=True)
class Downtime:
    """One robot out of collection, from its first failure to its next finished episode's start.

    ready_s: when its last worker was ready again; None while it is not. resumed_s: start of its next finished episode;
    None if there was none. failures: workers lost meanwhile; more than one is a recovery that was blocked.
    """

    robot_id: str
    start_s: float
    ready_s: float | None
    resumed_s: float | None
    failures: int
    cause: str

    @property
    def blocked(self) -> bool:
        return self.failures > 1


@dataclasses.dataclass(frozen=True)
class Session:
    """A stretch of the run without a break, and what each robot finished in it."""

    start_s: float
    end_s: float
    robots: tuple[RobotTrace, ...]


@dataclasses.dataclass(frozen=True)
class RunTrace:
    """sessions in order. skipped: finished episodes left out, since their clock jumped (they overlap, last no time)."""

    sessions: tuple[Session, ...]
    downtimes: tuple[Downtime, ...]
    skipped: int

    @property
    def run_s(self) -> float:
        """Length of all sessions."""
        return sum(session.end_s - session.start_s for session in self.sessions)

    @property
    def robots(self) -> int:
        return len({robot.robot_id for session in self.sessions for robot in session.robots})

    @property
    def finished(self) -> int:
        return sum(len(robot.episodes) for session in self.sessions for robot in session.robots)


def read_trace(run_dir: Path, gap_s: float = SESSION_GAP_S) -> RunTrace:
    """Raises FileNotFoundError where there is no run.db, ValueError where no episode was finished."""
    if not rundb.path_of(run_dir).exists():
        raise FileNotFoundError(f"{run_dir}: no run.db; give the folder of a run")
    db = rundb.open_db(run_dir)
    try:
        episodes, incidents = _episodes(db), _incidents(db)
    finally:
        db.close()
    if not episodes:
        raise ValueError(f"{run_dir}: no finished episodes, there is nothing to replay")
    kept = {robot: in_order(mine) for robot, mine in episodes.items()}
    skipped = sum(len(mine) - len(kept[robot]) for robot, mine in episodes.items())
    lost = [one for robot, rows in incidents.items() for one in downtimes(robot, rows, kept.get(robot, []))]
    return RunTrace(tuple(sessions(kept, gap_s)), tuple(sorted(lost, key=lambda one: one.start_s)), skipped)


Span = tuple[float, float]


def _episodes(db: sqlite3.Connection) -> dict[str, list[Span]]:
    query = "SELECT station, start_s, end_s FROM episodes WHERE end_s IS NOT NULL ORDER BY start_s, id"
    found: dict[str, list[Span]] = {}
    for row in db.execute(query):
        found.setdefault(row["station"], []).append((row["start_s"], row["end_s"]))
    return found


def _incidents(db: sqlite3.Connection) -> dict[str, list[sqlite3.Row]]:
    query = "SELECT station, time_s, recovered_s, cause FROM incidents WHERE role = ? ORDER BY time_s"
    found: dict[str, list[sqlite3.Row]] = {}
    for row in db.execute(query, (Role.ENVIRONMENT.value,)):
        found.setdefault(row["station"], []).append(row)
    return found


def in_order(spans: Iterable[Span]) -> list[Span]:
    """The episodes that last and begin after the one before has ended."""
    kept: list[Span] = []
    for start_s, end_s in spans:
        if start_s < end_s and (not kept or kept[-1][1] <= start_s):
            kept.append((start_s, end_s))
    return kept


def downtimes(robot: str, incidents: Sequence[sqlite3.Row], episodes: Sequence[Span]) -> list[Downtime]:
    """Failures with no finished episode between them are one downtime."""
    found: list[Downtime] = []
    for row in incidents:
        resumed_s = next((start_s for start_s, _ in episodes if start_s >= row["time_s"]), None)
        if found and found[-1].resumed_s == resumed_s:
            last = found.pop()
            found.append(dataclasses.replace(last, ready_s=row["recovered_s"], failures=last.failures + 1))
        else:
            found.append(Downtime(robot, row["time_s"], row["recovered_s"], resumed_s, 1, _in_a_line(row["cause"])))
    return found


def _in_a_line(cause: str) -> str:
    """The exception that ended a worker by itself, else how it ended."""
    lines = cause.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("exit code") else lines[0]


def sessions(episodes: dict[str, list[Span]], gap_s: float) -> list[Session]:
    """Cuts the run where no robot had an episode in progress for longer than `gap_s`."""
    spans = sorted(span for mine in episodes.values() for span in mine)
    cuts: list[Span] = []
    begin_s, end_s = spans[0]
    for start_s, stop_s in spans[1:]:
        if start_s - end_s > gap_s:
            cuts.append((begin_s, end_s))
            begin_s = start_s
        end_s = max(end_s, stop_s)
    cuts.append((begin_s, end_s))
    return [_session(episodes, *cut) for cut in cuts]


def _session(episodes: dict[str, list[Span]], start_s: float, end_s: float) -> Session:
    inside = {robot: tuple(s for s in mine if start_s <= s[0] <= end_s) for robot, mine in episodes.items()}
    return Session(start_s, end_s, tuple(RobotTrace(robot, mine) for robot, mine in sorted(inside.items()) if mine))


def grouped(downs: Sequence[Downtime], window_s: float = GROUP_WINDOW_S) -> list[list[Downtime]]:
    """Fault events: downtimes that began within `window_s` of the one before are one."""
    events: list[list[Downtime]] = []
    for one in sorted(downs, key=lambda down: down.start_s):
        if events and one.start_s - events[-1][-1].start_s <= window_s:
            events[-1].append(one)
        else:
            events.append([one])
    return events
