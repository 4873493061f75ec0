"""The planned day keeps every figure that the paper states, whatever the seed."""

import statistics

import pytest

from cel_jax.evaluation import availability as av
from cel_jax.evaluation.incidents import RUN_MIN, PlannedIncident, paper_day


def of_kind(day: list[PlannedIncident], *kinds: str) -> list[PlannedIncident]:
    return [one for one in day if one.kind in kinds]


@pytest.mark.parametrize("seed", range(20))
def test_the_day_has_the_papers_counts(seed: int) -> None:
    day = paper_day(seed)
    assert len(day) == 30 and len({one.robot for one in day}) == 22
    compute, hardware = of_kind(day, "compute", "network"), of_kind(day, "hardware")
    assert (len(compute), len({one.robot for one in compute})) == (19, 18)
    assert (len(hardware), len({one.robot for one in hardware})) == (9, 6)
    assert len(of_kind(day, "not_ready")) == 2
    assert statistics.median(one.downtime_min for one in compute) == 15
    assert statistics.median(one.downtime_min for one in hardware) == 8
    assert max(one.downtime_min for one in day) == 72
    assert sum(one.downtime_min for one in day) / 60 == pytest.approx(8.3, abs=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_the_day_groups_into_the_papers_events(seed: int) -> None:
    day = paper_day(seed)
    events = av.fault_events([av.Incident(str(one.robot), one.start_min / 60, one.downtime_min / 60) for one in day])
    assert len(events) == 19 and round(av.event_rate(len(events), 96, RUN_MIN / 60), 4) == 0.0288
    lost = [one for one in day if not one.returns]
    assert len(lost) == 4 and max(one.robot for one in lost) - min(one.robot for one in lost) == 3
    assert all(one.kind == "compute" for one in lost) and max(one.start_min for one in lost) < RUN_MIN


@pytest.mark.parametrize("seed", range(20))
def test_no_robot_fails_while_it_is_down(seed: int) -> None:
    last: dict[int, float] = {}
    for one in paper_day(seed):
        assert one.start_min >= last.get(one.robot, 0.0), one
        last[one.robot] = one.start_min + one.downtime_min
    assert max(last.values()) <= RUN_MIN


def test_seeds_differ_and_repeat() -> None:
    assert paper_day(3) == paper_day(3) != paper_day(4)
    with pytest.raises(ValueError, match="at least 22"):
        paper_day(0, robots=8)
