"""A run read back from run.db: downtimes, sessions, containment, replays and the page, on a run made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from cel_jax.evaluation import containment, trace, trace_variants
from cel_jax.evaluation.trace_replay import RobotTrace, median_pause_s, replace_during, synchronous_rounds
from cel_jax.recovery import rundb
from launch import report

START_S = 1_000_000.0


def make_run(run_dir: Path, episodes: dict[str, list[tuple[float, float]]], incidents: list[tuple]) -> Path:
    """incidents: (station, time, ready again or None, cause), seconds from the run's begin."""
    db = rundb.open_db(run_dir)
    for station, spans in episodes.items():
        for number, (start_s, end_s) in enumerate(spans):
            name = f"{station}-{number}"
            rundb.start_episode(db, name, station, "w", station, START_S + start_s)
            rundb.end_episode(db, name, 10, 0, START_S + end_s)
    for number, (station, at_s, ready_s, cause) in enumerate(incidents):
        recovered_s = None if ready_s is None else START_S + ready_s
        values = (f"w{number}", station, "environment", START_S + at_s, "exited", cause, -9, recovered_s)
        db.execute("INSERT INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    db.close()
    return run_dir


def every(period_s: float, length_s: float, begin_s: float, end_s: float) -> list[tuple[float, float]]:
    count = int((end_s - begin_s) / period_s)
    return [(begin_s + k * period_s, begin_s + k * period_s + length_s) for k in range(count)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two sessions of 40 min with a break of 20. r1 fails at 600 (three times in a row), r2 40 s after it, r3 never
    comes back from 5000 on."""
    first, second = (0.0, 2400.0), (3600.0, 6000.0)
    episodes = {f"r{i}": every(30, 25, *first) + every(30, 25, *second) for i in range(1, 4)}
    episodes["r1"] = [one for one in episodes["r1"] if not 590 <= one[0] < 900]
    episodes["r2"] = [one for one in episodes["r2"] if not 630 <= one[0] < 690]
    episodes["r3"] = [one for one in episodes["r3"] if one[0] < 4980]
    causes = [
        ("r1", 600.0, 610.0),
        ("r1", 615.0, 630.0),
        ("r1", 640.0, 888.0),
        ("r2", 640.0, 660.0),
        ("r3", 5000.0, None),
    ]
    return make_run(tmp_path / "run", episodes, [(*one, "exit code 1\nTraceback\nRuntimeError: x") for one in causes])


def test_failures_without_an_episode_between_them_are_one_downtime(run: Path) -> None:
    downs = trace.read_trace(run).downtimes
    assert [(one.robot_id, one.failures, one.blocked) for one in downs] == [
        ("r1", 3, True),
        ("r2", 1, False),
        ("r3", 1, False),
    ]
    r1, r2, r3 = downs
    assert (r1.start_s - START_S, r1.ready_s, r1.resumed_s) == (600, START_S + 888, START_S + 900)
    assert r3.resumed_s is None and r1.cause == "RuntimeError: x"
    assert [[one.robot_id for one in event] for event in trace.grouped(downs)] == [["r1", "r2"], ["r3"]]
    assert containment.resume_delays_s(downs) == [12.0, 30.0] and r2.resumed_s == START_S + 690


def test_sessions_are_apart_and_lost_time_is_counted_inside_them(run: Path) -> None:
    found = trace.read_trace(run)
    spans = [(one.start_s - START_S, one.end_s - START_S) for one in found.sessions]
    assert spans == [(0.0, 2395.0), (3600.0, 5995.0)] and found.robots == 3
    assert containment.lost_robot_s(found.downtimes, found) == 300 + 50 + 995
    assert len(trace.read_trace(run, gap_s=2000.0).sessions) == 1


def test_containment_compares_the_fleet_before_and_after_an_event(run: Path) -> None:
    """The event at 600 lies ten minutes from the begin; r1 misses ten episodes of 60, r2 two; the one at 5000 lies ten
    minutes from the end: r3 misses twenty."""
    events = containment.containment(trace.read_trace(run))
    assert [(one.before, one.after, one.robots) for one in events] == [(60, 48, ("r1", "r2")), (60, 40, ("r3",))]
    assert containment.containment(trace.read_trace(run), window_s=1100.0) == []


def test_pauses_by_faults_and_all_pauses_are_replaced() -> None:
    """r1's pauses are 5, 5 and 100 s, the last by a fault."""
    slow = RobotTrace("r1", ((5.0, 15.0), (20.0, 30.0), (130.0, 140.0), (145.0, 155.0)))
    quick = RobotTrace("r2", tuple(every(15.0, 10.0, 5.0, 200.0)))
    assert median_pause_s(slow) == 5.0
    as_it_was = synchronous_rounds([slow, quick], 0.0, 200.0)
    without = synchronous_rounds([slow, quick], 0.0, 200.0, replace_during([("r1", 40.0, 120.0)]))
    other = synchronous_rounds([slow, quick], 0.0, 200.0, replace_during([("r2", 40.0, 120.0), ("r1", 0.0, 1.0)]))
    assert without.finished > as_it_was.finished == other.finished


def test_a_restart_that_waits_for_repair_costs_more_and_nobody_waits_for_who_never_returns(run: Path) -> None:
    found = trace.read_trace(run)
    stops = [
        (begin - START_S, end - START_S)
        for begin, end in trace_variants.until_repaired(trace.grouped(found.downtimes), 120.0)
    ]
    assert stops == [(600.0, 900.0), (5000.0, 5120.0)]
    shares = {name: one.share for name, one in trace_variants.variants(found).items()}
    assert shares["as recorded"] == 1.0
    assert shares["full restart of 2 min"] > shares["full restart of 2 min, waiting for repair"]
    assert shares["full restart of 2 min"] > shares["full restart of 5 min"] > shares["full restart of 10 min"]
    assert shares["synchronous rounds"] < shares["synchronous rounds, no pauses by faults"] <= 1.0


def test_episodes_of_a_clock_that_jumped_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"r1": [(0.0, 10.0), (5.0, 20.0), (30.0, 25.0), (40.0, 50.0)]}, [])
    found = trace.read_trace(run)
    assert found.skipped == 2 and found.finished == 2


def test_no_run_and_no_episode_are_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="give the folder of a run"):
        trace.read_trace(tmp_path / "none")
    with pytest.raises(ValueError, match="no finished episodes"):
        trace.read_trace(make_run(tmp_path / "empty", {}, []))


def test_the_page_says_it_all(run: Path) -> None:
    from cel_jax.bus.histogram import Histogram
    from cel_jax.recovery import latency_record

    measured = Histogram()
    for _ in range(99):
        measured.add(0.010)
    measured.add(1.0)
    db = rundb.open_db(run)
    latency_record.note(db, "r1", "w", {"observation to action": measured})
    latency_record.note(db, "r1", "w", {"observation to action": measured})  # nothing new
    db.close()
    text = "\n".join(report.page(run))
    for words in ("3 downtimes of 3 robots in 2 events", "never came back: r3", "blocked 1 times", "median 73 %",
                  "full restart of 5 min, waiting for repair", "100 measured, p50 10.", "max 1"):  # fmt: skip
        assert words in text, text
