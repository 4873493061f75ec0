import numpy as np
import pytest

from cel_jax.evaluation.availability import system_share
from cel_jax.evaluation.trace_replay import RobotTrace, full_restart, synchronous_rounds

FAST = RobotTrace("fast", ((0, 10), (12, 22), (24, 34), (36, 46)))
SLOW = RobotTrace("slow", ((5, 35), (40, 60)))


def test_equal_robots_lose_nothing_in_rounds() -> None:
    found = synchronous_rounds([FAST, FAST], 0, 60)
    assert (found.finished, found.share, found.round_s) == (8, 1.0, (10, 12, 12, 12))


def test_rounds_wait_for_the_slowest_by_hand() -> None:
    """Round 1 ends at 35 (slow); round 2: fast 35-45, slow 40-60; rounds 3 and 4 start after the session's end."""
    found = synchronous_rounds([FAST, SLOW], 0, 60)
    assert (found.finished, found.recorded, found.round_s) == (4, 6, (35, 25))


def test_a_robot_that_has_gone_home_holds_nobody_up() -> None:
    found = synchronous_rounds([FAST, RobotTrace("gone", ((0, 10),))], 0, 60)
    assert found.finished == 5


def test_restart_repeats_the_episode_it_meets_by_hand() -> None:
    """The event at 15 ends fast's second episode; 15-20 restart, 20-30 repeat, then 32-42 and 44-54."""
    assert full_restart([FAST], 0, 54, [15], 5).finished == 4
    assert full_restart([FAST], 0, 53, [15], 5).finished == 3
    assert full_restart([FAST], 0, 46, [15, 19], 5).finished == 3  # 24-34, 36-46
    assert full_restart([FAST], 0, 46, [15, 20], 5).finished == 2  # 25-35, 37-47


def test_an_event_in_a_pause_only_delays() -> None:
    assert full_restart([FAST], 0, 46, [10.5], 1).finished == 4
    assert full_restart([FAST], 0, 46, [10.5], 2).finished == 3


def test_short_episodes_approach_equation_50() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(0, 360_000, 10.0)
    trace = RobotTrace("r", tuple(zip(steps, steps + 10, strict=True)))
    events = np.cumsum(rng.exponential(1200, 400))
    found = full_restart([trace], 0, 360_000, events[events < 360_000].tolist(), 300)
    assert found.share == pytest.approx(system_share(96, 3600 / 1200 / 96, 300 / 3600), abs=0.03)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="robot x: episode"):
        synchronous_rounds([RobotTrace("x", ((0, 10), (9, 12)))], 0, 60)
    with pytest.raises(ValueError, match="no episodes"):
        full_restart([], 0, 60, [], 5)
