"""Evaluation trials in a run's `run.db` (SQLite), one row a trial, and what the tables need from them."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from cel_jax.data.episode import Outcome
from cel_jax.evaluation.table import RobotResult

WAIT_S = 30.0  # for another process's write

_CREATE = """CREATE TABLE IF NOT EXISTS evaluations (
    time_s REAL NOT NULL, policy TEXT NOT NULL, policy_version INTEGER NOT NULL, step INTEGER NOT NULL,
    robot_id TEXT NOT NULL, seed INTEGER NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
    steps INTEGER NOT NULL, mode TEXT NOT NULL)"""


@dataclasses.dataclass(frozen=True)
class EvaluationRow:
    """One trial. step: the learner's step of the evaluated policy. steps: control steps of the trial.

    mode: `state` or `images`, or whatever else tells trials apart that must not be pooled.
    """

    time_s: float
    policy: str
    policy_version: int
    step: int
    robot_id: str
    seed: int
    outcome: Outcome
    reason: str
    steps: int
    mode: str


def append(database: str | pathlib.Path, rows: Sequence[EvaluationRow]) -> None:
    """Adds all rows or, on an error, none. Creates the table where it is missing."""
    names = [field.name for field in dataclasses.fields(EvaluationRow)]
    statement = f"INSERT INTO evaluations ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    values = [tuple(_plain(getattr(row, name)) for name in names) for row in rows]
    with _open(database) as connection, connection:
        connection.executemany(statement, values)


def read(database: str | pathlib.Path, policy: str | None = None, mode: str | None = None) -> list[EvaluationRow]:
    """All rows in the order of writing, or those of one policy or mode. Empty where nothing was evaluated yet."""
    if not pathlib.Path(database).is_file():
        raise FileNotFoundError(f"{database}: no such run database; give the run.db of a run")
    with _open(database) as connection:
        names = ", ".join(field.name for field in dataclasses.fields(EvaluationRow))
        condition, values = "(?1 IS NULL OR policy = ?1) AND (?2 IS NULL OR mode = ?2)", (policy, mode)
        found = connection.execute(
            f"SELECT {names} FROM evaluations WHERE {condition} ORDER BY rowid", values
        ).fetchall()
    return [_row(values) for values in found]


def _row(values: tuple[Any, ...]) -> EvaluationRow:
    named = dict(zip((field.name for field in dataclasses.fields(EvaluationRow)), values, strict=True))
    return EvaluationRow(**(named | {"outcome": Outcome(named["outcome"])}))


def latest(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """The last row of every trial: a repeated evaluation of the same scenes replaces, it does not add trials."""
    kept = {(row.policy, row.policy_version, row.mode, row.robot_id, row.seed): row for row in rows}
    return list(kept.values())


def robot_results(rows: Sequence[EvaluationRow]) -> list[RobotResult]:
    """Rows pooled by policy and robot, in order of first appearance; discarded trials do not count."""
    counts: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.outcome is not Outcome.DISCARD:
            count = counts.setdefault((row.policy, row.robot_id), [0, 0])
            count[0] += row.outcome is Outcome.SUCCESS
            count[1] += 1
    return [RobotResult(policy, robot, *count) for (policy, robot), count in counts.items()]


def _plain(value: object) -> object:
    return value.value if isinstance(value, Outcome) else value


@contextlib.contextmanager
def _open(database: str | pathlib.Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, timeout=WAIT_S)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(_CREATE)
        _check_columns(database, connection)
        yield connection
    finally:
        connection.close()


def _check_columns(database: str | pathlib.Path, connection: sqlite3.Connection) -> None:
    """Another version's table of the same name must not be half understood."""
    found = {row[1] for row in connection.execute("PRAGMA table_info(evaluations)")}
    missing = sorted({field.name for field in dataclasses.fields(EvaluationRow)} - found)
    if missing:
        raise ValueError(
            f"{database}: its table evaluations lacks {missing}; it was made by another version of cel_jax"
        )
