"""run.db: what happened in a run, in SQLite. Many processes write; each thread opens its own connection.

Episodes are keyed by their id. Whoever reads a finished run reads it from here. Every write is on disk when its
function returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BUSY_TIMEOUT_S = 30.0
UNDO_WINDOW_S = 10.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stations (
  name TEXT PRIMARY KEY, role TEXT NOT NULL, node TEXT NOT NULL, definition TEXT NOT NULL, desired TEXT NOT NULL,
  position INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'offline', worker TEXT NOT NULL DEFAULT '',
  pid INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, cause TEXT NOT NULL DEFAULT '',
  note TEXT NOT NULL DEFAULT '', retry_at_s REAL NOT NULL DEFAULT 0, updated_s REAL NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS workers (
  worker TEXT PRIMARY KEY, station TEXT NOT NULL, role TEXT NOT NULL, incarnation INTEGER NOT NULL,
  pid INTEGER NOT NULL, state TEXT NOT NULL, started_s REAL NOT NULL, ready_s REAL, ended_s REAL, how TEXT, cause TEXT,
  log TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS workers_station ON workers (station);
CREATE TABLE IF NOT EXISTS incidents (
  worker TEXT PRIMARY KEY, station TEXT NOT NULL, role TEXT NOT NULL, time_s REAL NOT NULL, how TEXT NOT NULL,
  cause TEXT NOT NULL, returncode INTEGER, recovered_s REAL);
CREATE TABLE IF NOT EXISTS calls (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, args TEXT NOT NULL, stations TEXT NOT NULL, time_s REAL NOT NULL,
  done_s REAL);
CREATE TABLE IF NOT EXISTS results (
  call TEXT NOT NULL, station TEXT NOT NULL, worker TEXT NOT NULL, ok INTEGER NOT NULL, value TEXT NOT NULL,
  time_s REAL NOT NULL, PRIMARY KEY (call, station));
CREATE TABLE IF NOT EXISTS episodes (
  id TEXT PRIMARY KEY, station TEXT NOT NULL, worker TEXT NOT NULL, robot TEXT NOT NULL, outcome TEXT,
  reason TEXT NOT NULL DEFAULT '', steps INTEGER, policy_version INTEGER, start_s REAL NOT NULL, end_s REAL,
  store TEXT);
CREATE TABLE IF NOT EXISTS labels (
  number INTEGER PRIMARY KEY AUTOINCREMENT, episode TEXT NOT NULL REFERENCES episodes (id), outcome TEXT NOT NULL,
  reason TEXT NOT NULL, author TEXT NOT NULL, time_s REAL NOT NULL, undone_s REAL);
CREATE UNIQUE INDEX IF NOT EXISTS one_label ON labels (episode) WHERE undone_s IS NULL;
CREATE TABLE IF NOT EXISTS retrievals (
  number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL UNIQUE, failure TEXT NOT NULL, time_s REAL NOT NULL,
  matches TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS metrics (
  key TEXT NOT NULL, step INTEGER NOT NULL, value REAL NOT NULL, time_s REAL NOT NULL);
CREATE INDEX IF NOT EXISTS metrics_key ON metrics (key, step);
CREATE TABLE IF NOT EXISTS events (
  number INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, kind TEXT NOT NULL, station TEXT NOT NULL,
  worker TEXT NOT NULL, detail TEXT NOT NULL);
"""


class RunDbError(RuntimeError):
    """A write that contradicts what the run already recorded."""


def path_of(run_dir: Path) -> Path:
    return run_dir / "run.db"


def open_db(run_dir: Path) -> sqlite3.Connection:
    """Opens run.db, creating what is missing. For the calling thread only."""
    run_dir.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path_of(run_dir), timeout=BUSY_TIMEOUT_S, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA foreign_keys=ON")
    with transaction(db):
        for statement in SCHEMA.split(";"):
            db.execute(statement)
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. Takes the write lock at once, so that two writers queue instead of failing half way."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def rows(db: sqlite3.Connection, query: str, args: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """A query's rows as dictionaries."""
    return [dict(row) for row in db.execute(query, args)]


# -- run-wide values ---------------------------------------------------------------------------------------------


def set_value(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute("INSERT INTO run VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def get_value(db: sqlite3.Connection, key: str, default: str = "") -> str:
    row = db.execute("SELECT value FROM run WHERE key = ?", (key,)).fetchone()
    return default if row is None else str(row["value"])


# -- episodes and labels -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EpisodeRow:
    """One episode's record. outcome: None while unlabelled. times: seconds since 1970."""

    id: str
    station: str
    worker: str
    robot: str
    start_s: float
    outcome: str | None = None
    reason: str = ""
    steps: int | None = None
    policy_version: int | None = None
    end_s: float | None = None
    store: str | None = None


def start_episode(db: sqlite3.Connection, id: str, station: str, worker: str, robot: str, start_s: float) -> None:
    """Raises RunDbError if the id was used before."""
    try:
        db.execute(
            "INSERT INTO episodes (id, station, worker, robot, start_s) VALUES (?, ?, ?, ?, ?)",
            (id, station, worker, robot, start_s),
        )
    except sqlite3.IntegrityError as error:
        raise RunDbError(f"episode {id} (station {station}): the id is in run.db already; use a new one") from error


def end_episode(db: sqlite3.Connection, id: str, steps: int, policy_version: int, end_s: float) -> None:
    """`policy_version`: the last one that acted. Raises RunDbError for an unknown episode."""
    cursor = db.execute(
        "UPDATE episodes SET steps = ?, policy_version = ?, end_s = ? WHERE id = ?", (steps, policy_version, end_s, id)
    )
    if cursor.rowcount != 1:
        raise RunDbError(f"episode {id}: cannot end, it was never started in run.db")


def get_episode(db: sqlite3.Connection, id: str) -> EpisodeRow:
    """Raises RunDbError for an unknown episode."""
    row = db.execute("SELECT * FROM episodes WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise RunDbError(f"episode {id}: unknown to run.db")
    return EpisodeRow(**dict(row))


def episodes(db: sqlite3.Connection, where: str = "1", args: Sequence[Any] = ()) -> list[EpisodeRow]:
    """Episodes in order of their start, e.g. where='outcome IS NULL AND end_s IS NOT NULL' for those to label."""
    return [
        EpisodeRow(**dict(row))
        for row in db.execute(f"SELECT * FROM episodes WHERE {where} ORDER BY start_s, id", args)
    ]


def label_episode(
    db: sqlite3.Connection, episode: str, outcome: str, author: str, reason: str = "", now_s: float | None = None
) -> float:
    """Labels once and returns the label's time. Raises RunDbError for an unknown or already labelled episode."""
    now_s = time.time() if now_s is None else now_s
    with transaction(db):
        known = get_episode(db, episode)
        if known.outcome is not None:
            raise RunDbError(
                f"episode {episode} is already labelled {known.outcome}; undo that within {UNDO_WINDOW_S:g} s of it"
            )
        db.execute(
            "INSERT INTO labels (episode, outcome, reason, author, time_s) VALUES (?, ?, ?, ?, ?)",
            (episode, outcome, reason, author, now_s),
        )
        db.execute("UPDATE episodes SET outcome = ?, reason = ? WHERE id = ?", (outcome, reason, episode))
    return now_s


def undo_label(db: sqlite3.Connection, episode: str, now_s: float | None = None) -> None:
    """Takes a label back within UNDO_WINDOW_S. Raises RunDbError if there is none or it is final."""
    now_s = time.time() if now_s is None else now_s
    with transaction(db):
        row = db.execute("SELECT * FROM labels WHERE episode = ? AND undone_s IS NULL", (episode,)).fetchone()
        if row is None:
            raise RunDbError(f"episode {episode} has no label to undo")
        age_s = now_s - row["time_s"]
        if age_s > UNDO_WINDOW_S:
            raise RunDbError(f"episode {episode}: its label is {age_s:.1f} s old and final; annotate it instead")
        db.execute("UPDATE labels SET undone_s = ? WHERE number = ?", (now_s, row["number"]))
        db.execute("UPDATE episodes SET outcome = NULL, reason = '' WHERE id = ?", (episode,))


def final_labels(db: sqlite3.Connection, now_s: float | None = None) -> list[dict[str, Any]]:
    """Labels that can no longer be undone, oldest first."""
    now_s = time.time() if now_s is None else now_s
    query = "SELECT * FROM labels WHERE undone_s IS NULL AND time_s < ? ORDER BY number"
    return rows(db, query, (now_s - UNDO_WINDOW_S,))


def assign_store(db: sqlite3.Connection, episode: str, store: str) -> None:
    """Fixes an episode's store. Raises RunDbError while it has another one: revoke that first."""
    with transaction(db):
        present = get_episode(db, episode).store
        if present not in (None, store):
            raise RunDbError(f"episode {episode} belongs to store {present}; revoke it before giving it to {store}")
        db.execute("UPDATE episodes SET store = ? WHERE id = ?", (store, episode))


def revoke_store(db: sqlite3.Connection, episode: str, store: str) -> None:
    """Takes an episode from its store. Raises RunDbError if that is not its store."""
    cursor = db.execute("UPDATE episodes SET store = NULL WHERE id = ? AND store = ?", (episode, store))
    if cursor.rowcount != 1:
        raise RunDbError(f"episode {episode} is not with store {store}; nothing to revoke")


# -- what the learner and the evaluation say ---------------------------------------------------------------------


def add_retrieval(
    db: sqlite3.Connection, event: str, failure: str, matches: Sequence[Mapping[str, Any]], now_s: float | None = None
) -> None:
    """One retrieval event: `failure` is the failed episode, `matches` its intervals (plain values). Once per event."""
    try:
        db.execute(
            "INSERT INTO retrievals (event, failure, time_s, matches) VALUES (?, ?, ?, ?)",
            (event, failure, _now(now_s), json.dumps([dict(match) for match in matches])),
        )
    except sqlite3.IntegrityError as error:
        raise RunDbError(f"retrieval {event} is in run.db already") from error


def add_metrics(db: sqlite3.Connection, step: int, values: Mapping[str, float], now_s: float | None = None) -> None:
    """Values of one step, in one transaction."""
    at_s = _now(now_s)
    lines = [(key, step, float(value), at_s) for key, value in values.items()]
    with transaction(db):
        db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", lines)


def metric(db: sqlite3.Connection, key: str) -> list[tuple[int, float, float]]:
    """(step, value, time_s) of a metric in order."""
    found = db.execute("SELECT step, value, time_s FROM metrics WHERE key = ? ORDER BY step, time_s", (key,))
    return [(row["step"], row["value"], row["time_s"]) for row in found]


def add_event(
    db: sqlite3.Connection, kind: str, detail: str, station: str = "", worker: str = "", now_s: float | None = None
) -> None:
    """Anything else worth reading afterwards."""
    db.execute(
        "INSERT INTO events (time_s, kind, station, worker, detail) VALUES (?, ?, ?, ?, ?)",
        (_now(now_s), kind, station, worker, detail),
    )


def events(db: sqlite3.Connection, kinds: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Events in order, of all kinds or those named."""
    wanted = list(kinds)
    marks = ",".join("?" * len(wanted))
    where = f"WHERE kind IN ({marks})" if wanted else ""
    return rows(db, f"SELECT * FROM events {where} ORDER BY number", wanted)


def _now(now_s: float | None) -> float:
    return time.time() if now_s is None else now_s
