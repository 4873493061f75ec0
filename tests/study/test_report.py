"""What a study reports of its run.db: rounds come back as they were, seeds are pooled, differences stay in a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cel_jax.config import RunConfig
from cel_jax.data.episode import Outcome
from cel_jax.evaluation import rundb_evals
from cel_jax.evaluation.rundb_evals import EvaluationRow
from cel_jax.study import pictures, pooled, results
from cel_jax.study.collecting import Collected
from cel_jax.study.grid import Cell, cells
from cel_jax.study.lockstep import Round

MAIN = cells("main", seeds=2)


def rows(policy: str, version: int, wins: int, seed: int) -> list[EvaluationRow]:
    """40 trials on four robots, `wins` of them on the first scenes."""
    return [
        EvaluationRow(0.0, policy, version, version, f"sim-{i % 4}", 100 * seed + i,
                      Outcome.SUCCESS if i < wins else Outcome.FAILURE, "", 10, "state")
        for i in range(40)
    ]  # fmt: skip


def a_round(number: int, successes: int) -> Round:
    collected = Collected(20, successes, 9_000, {2: 15 - successes, 7: 5})
    return Round(number, number + 1, 100 * (number + 1), collected, 0.1, 0.5, 1.0, 2.0, {2: 0.75, 7: 0.25})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two seeds; uniform replay has ten wins more than its seed's start, FERT twelve more than uniform."""
    path = tmp_path / "run.db"
    for seed, wins in enumerate((8, 16)):
        rundb_evals.append(path, rows(f"start-seed{seed}", 0, wins, seed))
        rundb_evals.append(path, rows(f"uniform-seed{seed}", 2, 3, seed))  # of an earlier version
        rundb_evals.append(path, rows(f"uniform-seed{seed}", 4, wins + 10, seed))
        rundb_evals.append(path, rows(f"fert-seed{seed}", 4, wins + 22, seed))
        for number, successes in enumerate((5, 9)):
            results.add_round(path, Cell("fert", "fert", seed), RunConfig(), a_round(number, successes))
    return path


def test_rounds_come_back_as_they_were(database: Path) -> None:
    assert results.rounds(database, Cell("fert", "fert", 1)) == [a_round(0, 5), a_round(1, 9)]
    assert results.rounds(database, Cell("uniform", "uniform", 1)) == []


def test_the_last_version_counts_and_differences_stay_within_a_seed(database: Path) -> None:
    found = {row.name: row for row in pooled.variants(database, MAIN)}
    assert set(found) == {"start", "uniform", "fert"}  # the control has not been evaluated
    assert found["uniform"].rate.value == pytest.approx((18 + 26) / 80)
    gain = pooled.minus(found["fert"], found["uniform"])
    assert gain is not None and gain.value == pytest.approx(12 / 40)
    assert 0 < gain.low < gain.value < gain.high


def test_seeds_that_only_one_has_are_left_out_of_a_difference(database: Path) -> None:
    found = {row.name: row for row in pooled.variants(database, MAIN)}
    alone = pooled.Variant("fert", {0: found["fert"].seeds[0]})
    gain = pooled.minus(alone, found["start"])
    assert gain is not None and gain.value == pytest.approx(22 / 40)
    assert pooled.minus(alone, pooled.Variant("other", {7: found["fert"].seeds[0]})) is None


def test_the_table_compares_with_every_control_that_is_there(database: Path) -> None:
    head, _, start, uniform, fert = pooled.table(database, MAIN).splitlines()
    assert "minus start" in head and "minus uniform" in head and "minus demonstrations" not in head
    assert start.startswith("| start | 2 | 30.0 [")
    assert "| +25.0 [" in uniform and "| +55.0 [" in fert and "| +30.0 [" in fert


def test_pictures_show_what_the_study_has(database: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = pictures.draw_all(database, MAIN, tmp_path / "report")
    assert {path.name for path in drawn} == {"success.svg", "failures.svg", "effective_share.svg", "stage_share.svg"}
    assert all("<svg" in path.read_text() for path in drawn)


def test_fleet_sizes_have_a_picture_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.db"
    for robots, wins in ((4, 10), (16, 20)):
        rundb_evals.append(path, rows(f"{robots}_robots-seed0", 3, wins, 0))
    some = [cell for cell in cells("figure7", 1) if cell.name in ("4_robots", "16_robots")]
    assert [path.name for path in pictures.draw_all(path, some, tmp_path / "report")] == ["fleet_size.svg"]
