import pytest

from cel_jax.evaluation import availability as av

RATE = 0.0288  # the paper's, events per robot-hour


@pytest.mark.parametrize(
    ("robots", "minutes", "percent"),
    [(96, 2, 91.6), (96, 5, 81.3), (96, 10, 68.5), (1024, 2, 50.4), (1024, 5, 28.9), (1024, 10, 16.9)],
)
def test_equation_50_gives_the_papers_numbers(robots: int, minutes: float, percent: float) -> None:
    assert round(100 * av.system_share(robots, RATE, minutes / 60), 1) == percent


def test_equation_51_gives_the_papers_number_at_any_size() -> None:
    assert round(100 * av.robot_share([8.3], 96, 6.88), 1) == 98.7
    assert av.robot_share([0.1] * 30, 96, 6.88) == pytest.approx(av.robot_share([0.1] * 300, 960, 6.88))


def test_the_papers_event_rate() -> None:
    assert round(av.event_rate(19, 96, 6.88), 4) == RATE


def test_incidents_within_two_minutes_are_one_event() -> None:
    starts_min = [10, 0, 1.5, 3.4, 5.5, 10]
    found = av.fault_events([av.Incident(f"r{i}", m / 60, 0.1) for i, m in enumerate(starts_min)])
    assert [[one.robot_id for one in event] for event in found] == [["r1", "r2", "r3"], ["r4"], ["r0", "r5"]]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="restart_h"):
        av.system_share(96, RATE, -1)
    with pytest.raises(ValueError, match="robot-hours lost"):
        av.robot_share([100], 2, 6)


def test_prints_the_papers_figures() -> None:
    text = "\n".join(av.paper_lines())
    for figure in ("0.0288", "91.6 %, 81.3 %, 68.5 %", "50.4 %, 28.9 %, 16.9 %", "98.7 %"):
        assert figure in text, text
