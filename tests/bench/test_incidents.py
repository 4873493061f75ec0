"""What the incidents' bench counts as lost beyond the faults themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.incidents import Injected, lost_beyond_s, others_restarted
from cel_jax.evaluation.incidents import PlannedIncident
from cel_jax.robots.ghost_ledger import Ledger


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """robot-00: down from 10 to 20, acts again at 22; robot-01: a pause of 3 s at 50 and of 2 s before the day."""
    facts = {
        "robot-00": [(5.0, "act", {}), (15.0, "pause", {"seconds": 5.0}), (22.0, "act", {})],
        "robot-01": [(1.0, "pause", {"seconds": 2.0}), (50.0, "pause", {"seconds": 3.0})],
        "robot-02": [(1.0, "connect", {}), (30.0, "connect", {})],
    }
    for station, mine in facts.items():
        ledger = Ledger(tmp_path / "ledger" / f"{station}.jsonl")
        for at_s, fact, more in mine:
            monkeypatch.setattr("cel_jax.robots.ghost_ledger.time.monotonic", lambda now_s=at_s: now_s)
            ledger.write(fact, **more)
        ledger.close()
    return tmp_path


def incident(resumed_s: float | None) -> Injected:
    return Injected(PlannedIncident(0, "compute", 0.0, 1.0, 0), 10.0, 20.0, resumed_s)


def test_a_faults_own_time_is_not_the_systems(run_dir: Path) -> None:
    assert lost_beyond_s([incident(22.0)], run_dir, start_s=4.0) == ([2.0], 3.0)


def test_a_robot_that_never_acts_again_has_no_delay(run_dir: Path) -> None:
    assert lost_beyond_s([incident(None)], run_dir, start_s=4.0) == ([], 3.0)


def test_others_that_were_restarted_are_counted(run_dir: Path) -> None:
    assert others_restarted([incident(22.0)], run_dir, start_s=4.0) == 1
    assert others_restarted([incident(22.0)], run_dir, start_s=40.0) == 0
