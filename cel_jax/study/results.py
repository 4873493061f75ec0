"""A study's rounds in its run.db, and the tables made from them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cel_jax
from cel_jax.config import RunConfig, to_dict
from cel_jax.data.episode import Outcome
from cel_jax.evaluation import rundb_evals
from cel_jax.evaluation.compare import difference
from cel_jax.evaluation.intervals import wilson
from cel_jax.evaluation.rundb_evals import EvaluationRow
from cel_jax.study.collecting import Collected
from cel_jax.study.grid import Cell
from cel_jax.study.lockstep import Round

_CREATE = """CREATE TABLE IF NOT EXISTS study_rounds (
    cell TEXT NOT NULL, arm TEXT NOT NULL, seed INTEGER NOT NULL, round INTEGER NOT NULL, time_s REAL NOT NULL,
    code TEXT NOT NULL, config TEXT NOT NULL, result TEXT NOT NULL, PRIMARY KEY (cell, seed, round))"""


def code_version() -> str:
    """A hash over the package's sources: what ran, also where there is no git."""
    root = Path(cel_jax.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def add_round(database: Path, cell: Cell, config: RunConfig, done: Round) -> None:
    """One row a round; a round that was repeated after an interruption replaces its row."""
    row = (
        cell.name, cell.arm, cell.seed, done.number, time.time(), code_version(), json.dumps(to_dict(config)),
        json.dumps(dataclasses.asdict(done)),
    )  # fmt: skip
    with _open(database) as connection, connection:
        connection.execute(f"INSERT OR REPLACE INTO study_rounds VALUES ({', '.join('?' * len(row))})", row)


def rounds(database: Path, cell: Cell) -> list[Round]:
    """A cell's finished rounds in their order; none where it has not begun."""
    with _open(database) as connection:
        found = connection.execute(
            "SELECT result FROM study_rounds WHERE cell = ? AND seed = ? ORDER BY round", (cell.name, cell.seed)
        ).fetchall()
    return [_round(json.loads(result)) for (result,) in found]


def _round(values: dict[str, Any]) -> Round:
    collected = values["collected"]
    failures = {int(stage): count for stage, count in collected["failures"].items()}
    stage_share = {int(stage): share for stage, share in values.get("stage_share", {}).items()}
    return Round(
        **{**values, "collected": Collected(**{**collected, "failures": failures}), "stage_share": stage_share}
    )


def describe(done: Round) -> str:
    """One line of progress."""
    collected = done.collected
    rate = f"{collected.successes} of {collected.episodes} succeeded, " if collected.episodes else ""
    stages = ", ".join(f"{stage + 1}: {count}" for stage, count in sorted(collected.failures.items()))
    failed = f"failures by step {stages}; " if stages else ""
    return (
        f"version {done.version}, step {done.step}: {rate}{failed}loss {done.loss:.4f}, effective share "
        f"{done.effective_share:.2f}; collected in {done.collect_s:.0f} s, trained in {done.train_s:.0f} s"
    )


def table(database: Path, cells: Sequence[Cell]) -> str:
    """Success of every cell and of its start, and the difference on the same scenes."""
    lines = []
    for cell in cells:
        rows = [row for row in rundb_evals.read(database, cell.folder) if row.policy_version > 0]
        if not rows:
            lines.append(f"{cell.folder}: not evaluated")
            continue
        last = max(row.policy_version for row in rows)
        mine = rundb_evals.latest([row for row in rows if row.policy_version == last])
        start = rundb_evals.latest(rundb_evals.read(database, f"start-seed{cell.seed}"))
        lines.append(f"{cell.folder} (version {last}): {_rate(mine)}")
        lines.append("  " + difference(cell.name, mine, "start", start))
    starts = [f"start-seed{seed}" for seed in sorted({cell.seed for cell in cells})]
    lines = [f"{name}: {_rate(rundb_evals.latest(rundb_evals.read(database, name)))}" for name in starts] + lines
    return "\n".join(lines)


def _rate(rows: Sequence[EvaluationRow]) -> str:
    won = sum(row.outcome is Outcome.SUCCESS for row in rows)
    rate = wilson(won, len(rows))
    return f"{won}/{len(rows)} = {100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


@contextlib.contextmanager
def _open(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, timeout=30.0)
    try:
        connection.execute(_CREATE)
        yield connection
    finally:
        connection.close()
