import pathlib
import sqlite3

import pytest

from cel_jax.data.episode import Outcome
from cel_jax.evaluation import rundb_evals as db
from cel_jax.evaluation import table
from cel_jax.evaluation.table import RobotResult


def test_the_papers_table_12() -> None:
    results = [RobotResult("FERT", "Robot 1", 53, 60), RobotResult("FERT", "Robot 2", 51, 60)]
    results += [RobotResult("w/o FR", "Robot 1", 33, 60), RobotResult("w/o FR", "Robot 2", 44, 60)]
    assert table.render(results, "Phone Packaging").splitlines() == [
        "Phone Packaging",
        "                    FERT     w/o FR",
        "Robot 1            53/60      33/60",
        "Robot 2            51/60      44/60",
        "Avg. (%)           86.67      64.17",
        "95 % (Wilson)  79.4-91.6  55.3-72.2",
    ]


def test_missing_cells_and_doubles() -> None:
    results = [RobotResult("a", "r1", 1, 2), RobotResult("b", "r2", 1, 2)]
    assert table.render(results).splitlines()[1].split() == ["r1", "1/2", "-"]
    with pytest.raises(ValueError, match="two results of policy 'a' on robot 'r1'"):
        table.render([*results, results[0]])
    with pytest.raises(ValueError, match="no trials of policy 'c'"):
        table.pooled(results, "c")


def _row(policy: str, robot: str, outcome: Outcome, mode: str = "state") -> db.EvaluationRow:
    return db.EvaluationRow(1.5, policy, 3, 1500, robot, 77_000, outcome, "no progress", 210, mode)


def test_rows_come_back_and_pool(tmp_path: pathlib.Path) -> None:
    rows = [_row("fert", "r1", o) for o in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.DISCARD)]
    rows += [_row("start", "r1", Outcome.SUCCESS, "images")]
    db.append(tmp_path / "run.db", rows[:2])
    db.append(tmp_path / "run.db", rows[2:])
    assert db.read(tmp_path / "run.db") == rows
    assert db.read(tmp_path / "run.db", policy="start") == db.read(tmp_path / "run.db", mode="images") == rows[3:]
    assert db.robot_results(rows) == [RobotResult("fert", "r1", 1, 2), RobotResult("start", "r1", 1, 1)]


def test_all_or_nothing_and_no_new_file_on_reading(tmp_path: pathlib.Path) -> None:
    bad = db.EvaluationRow(1.0, "p", 0, 0, None, 0, Outcome.SUCCESS, "", 1, "state")  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        db.append(tmp_path / "run.db", [_row("p", "r", Outcome.SUCCESS), bad])
    assert db.read(tmp_path / "run.db") == []
    with pytest.raises(FileNotFoundError, match="no such run database"):
        db.read(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_a_table_of_another_version_is_refused(tmp_path: pathlib.Path) -> None:
    connection = sqlite3.connect(tmp_path / "run.db")
    connection.execute("CREATE TABLE evaluations (time_s REAL, robot TEXT)")
    connection.close()
    with pytest.raises(ValueError, match=r"lacks \['mode', 'outcome', 'policy'"):
        db.append(tmp_path / "run.db", [_row("p", "r", Outcome.SUCCESS)])
