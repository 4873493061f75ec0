"""The guard that every action passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cel_jax.robots.protocol import RobotError
from cel_jax.robots.safety import ActionGuard, SafetyLimits, Workspace

LIMITS = SafetyLimits(low=(-1.0, 0.0), high=(1.0, 1.0), max_velocity=(3.0, 30.0), max_step=(0.5, 0.2))


def guard(limits: SafetyLimits = LIMITS, tips=None) -> ActionGuard:  # type: ignore[no-untyped-def]
    g = ActionGuard(limits, 0.1, "arm-7", tips)
    g.reset(np.zeros(2))
    return g


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_and_named(bad: float) -> None:
    with pytest.raises(RobotError, match=r"arm-7.*\[1\].*nothing was sent"):
        guard().check(np.array([0.0, bad]))


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(RobotError, match=r"\(2,\).*\(3,\)"):
        guard().check(np.zeros(3))


def test_action_before_reset_is_refused() -> None:
    with pytest.raises(RobotError, match="before reset"):
        ActionGuard(LIMITS, 0.1, "arm-7").check(np.zeros(2))


def test_velocity_and_step_limits_bound_one_period() -> None:
    np.testing.assert_allclose(guard().check(np.array([9.0, 9.0])), [0.3, 0.2], rtol=1e-6)


def test_a_far_target_is_reached_at_the_limit_of_speed_and_stops_at_the_joint_limit() -> None:
    g = guard()
    sent = [g.check(np.array([5.0, 0.0]))[0] for _ in range(5)]
    np.testing.assert_allclose(sent, [0.3, 0.6, 0.9, 1.0, 1.0], rtol=1e-6)
    assert g.clipped_actions == 5


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_whatever_comes_every_step_stays_in_bounds(actions: list[tuple[float, float]]) -> None:
    g, last = guard(), np.zeros(2)
    for action in actions:
        sent = g.check(np.array(action))
        assert np.all(np.abs(sent - last) <= np.array([0.3, 0.2]) + 1e-6)
        assert np.all(sent >= np.array([-1.0, 0.0]) - 1e-6) and np.all(sent <= 1.0 + 1e-6)
        last = sent.astype(np.float64)


def test_an_arm_that_would_leave_the_workspace_holds() -> None:
    limits = SafetyLimits(
        (-9.0,) * 2, (9.0,) * 2, (99.0,) * 2, (9.0,) * 2, arms=(slice(0, 1), slice(1, 2)),
        workspace=Workspace((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0)),
    )  # fmt: skip
    g = guard(limits, lambda a: np.array([[a[0], 0, 0], [a[1], 0, 0]]))
    np.testing.assert_array_equal(g.check(np.array([0.5, 0.5])), [0.5, 0.5])
    np.testing.assert_array_equal(g.check(np.array([1.5, 0.7])), np.array([0.5, 0.7], np.float32))
    assert g.held_actions == 1


def test_what_is_returned_is_no_view_of_what_came() -> None:
    action = np.zeros(2, np.float32)
    sent = guard().check(action)
    action[:] = 7.0
    np.testing.assert_array_equal(sent, [0.0, 0.0])
