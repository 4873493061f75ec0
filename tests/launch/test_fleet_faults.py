"""The fault matrix in short: ghosts on the real bus, a few rows, counted by ledger and census."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import fault_matrix
from bench.fault_matrix import Result, abandoned, attribute, table
from bench.fault_matrix_network import NAMES, possible
from bench.fault_matrix_rows import LEARNER_ROWS, ROWS
from cel_jax.robots.ghost_census import Census
from cel_jax.robots.ghost_ledger import Ledger

NEEDS_ROOT = {"spool_full", "store_full", "oom"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_nobody_else_stops(tmp_path: Path) -> None:
    wanted = {row.name for row in ROWS} - {"sigstop", "controller"} - (NEEDS_ROOT if os.getuid() else set())
    results = fault_matrix.measure(tmp_path, 6, 1, wanted | {"none of the learner's"}, 1)
    done = [result for result in results if result.problem != "not run"]
    assert {result.name for result in done} == wanted
    for result in done:
        counts = (result.lost, result.duplicated, result.stale, result.others_stopped, result.problem)
        assert counts == (0, 0, 0, 0, ""), result
        assert len(result.rejoin_s) == 1 and result.longest_pause_s < 20.0, result
        assert all(result.causes), f"{result.name}: an end without a cause: {result.causes}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_robots_with_physics_and_a_real_policy_lose_nothing_either(tmp_path: Path) -> None:
    wanted = {"physical_sigkill", "physical_inference", "physical_two", "physical_learner_step"}
    results = fault_matrix.measure(tmp_path, 4, 1, wanted, 4)
    done = [result for result in results if result.problem != "not run"]
    assert {result.name for result in done} == wanted
    for result in done:
        counts = (result.lost, result.duplicated, result.others_stopped, result.problem)
        assert counts == (0, 0, 0, "") and all(result.causes), result


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_robots_go_on_without_a_controller(tmp_path: Path) -> None:
    results = fault_matrix.measure(tmp_path, 4, 1, {"controller"}, 2)
    (result,) = (one for one in results if one.name == "controller")
    assert (result.lost, result.duplicated, result.others_stopped, result.problem) == (0, 0, 0, "")
    assert result.longest_pause_s < 5.0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not possible(), reason="network namespaces need root and iproute2")
def test_a_node_behind_a_dead_and_a_lossy_link_loses_nothing(tmp_path: Path) -> None:
    results = fault_matrix.measure(tmp_path, 2, 1, set(NAMES), 3)
    done = [result for result in results if result.name in NAMES]
    assert len(done) == len(NAMES)
    for result in done:
        counts = (result.lost, result.duplicated, result.stale, result.others_stopped, result.problem)
        assert counts == (0, 0, 0, 0, "") and len(result.rejoin_s) == 1, result


def test_what_was_not_run_has_no_figures() -> None:
    lines = table([Result("blackhole", "x", problem="not run"), Result("late", "x", problem="TimeoutError")]).split(
        "\n"
    )
    assert lines[1].split() == ["blackhole", "not", "run"] and lines[2].split() == ["late", "TimeoutError"]
    assert not {row.name for row in (*ROWS, *LEARNER_ROWS)} & set(NAMES)


def test_losses_go_to_the_row_in_whose_time_the_label_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger" / "robot-00.jsonl")
    for at_s, fact, episode in ((5.0, "labelled", "e1"), (15.0, "labelled", "e2"), (15.5, "stale", "")):
        monkeypatch.setattr("cel_jax.robots.ghost_ledger.time.monotonic", lambda now_s=at_s: now_s)
        ledger.write(fact, episode=episode, digest="d")
    results = [Result("a", "", (0.0, 10.0), [1.0]), Result("b", "", (10.0, 20.0), [1.0])]
    attribute(results, (tmp_path,), Census(2, 0, ("e1", "e2"), (), (), (), 1, ()))
    assert [(one.lost, one.stale) for one in results] == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    "kinds,expected",
    [(["reset", "verdict", "labelled", "reset"], False), (["reset", "reset"], True), (["labelled"], False)],
)
def test_an_episode_without_its_label_is_an_abandoned_one(kinds: list[str], expected: bool) -> None:
    assert abandoned([{"fact": kind} for kind in kinds]) is expected
