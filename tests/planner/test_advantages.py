"""Invariants 2, 7 and 8: leave-one-out advantages, the cap of responses, validity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cel_jax.planner.advantages import group_advantages, rloo_advantages, select_responses
from cel_jax.planner.records import Report


def _report(attempt: int, reward: float, valid: bool = True, task: str = "t") -> Report:
    return Report(f"{task}-{attempt}", task, 11, attempt, reward, valid)


@given(st.lists(st.integers(0, 1), min_size=2, max_size=8))
def test_sum_is_zero_and_the_definition_holds(rewards: list[int]) -> None:
    values = rloo_advantages(np.array(rewards))
    assert values.sum() == pytest.approx(0.0, abs=1e-5)
    for i, value in enumerate(values):
        assert value == pytest.approx(rewards[i] - np.mean(rewards[:i] + rewards[i + 1 :]), abs=1e-6)
    if len(set(rewards)) == 1:
        assert not values.any()


def test_equal_fractional_rewards_give_exactly_zero() -> None:
    assert not rloo_advantages(np.full(6, 0.1)).any()


def test_one_attempt_has_no_baseline() -> None:
    with pytest.raises(ValueError, match="at least two rewards"):
        rloo_advantages(np.array([1.0]))


def test_an_invalid_attempt_changes_the_size_of_the_group() -> None:
    valid = [_report(0, 1.0), _report(1, 0.0), _report(2, 0.0)]
    with_invalid, counts = group_advantages([*valid, _report(3, 0.0, valid=False)])
    assert with_invalid == group_advantages(valid)[0]
    assert counts["invalid"] == 1 and "t-3" not in with_invalid
    as_failure, _ = group_advantages([*valid, _report(3, 0.0)])
    assert as_failure["t-1"] == pytest.approx(-1 / 3) and with_invalid["t-1"] == pytest.approx(-1 / 2)


def test_groups_without_contrast_or_partner_are_counted_and_left_out() -> None:
    reports = [_report(0, 1.0), _report(1, 1.0), _report(0, 1.0, task="u"), _report(1, 0.0, False, "u")]
    advantages, counts = group_advantages(reports)
    assert advantages == {} and counts == {"invalid": 1, "single": 1, "equal": 1, "groups": 2}


def test_groups_differ_by_task_and_by_initial_state() -> None:
    here, there = Report("a", "t", 11, 0, 1.0, True), Report("b", "t", 12, 0, 0.0, True)
    assert group_advantages([here, there])[1]["single"] == 2


def test_at_most_sixteen_and_the_same_again() -> None:
    chosen = select_responses("e", 100, 16, seed=3)
    assert len(chosen) == 16 == len(set(chosen)) and (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, select_responses("e", 100, 16, seed=3))
    assert not np.array_equal(chosen, select_responses("f", 100, 16, seed=3))
    np.testing.assert_array_equal(select_responses("e", 5, 16, seed=3), np.arange(5))


def test_every_response_is_chosen_equally_often() -> None:
    counts = np.bincount(np.concatenate([select_responses(f"e{i}", 20, 5, 0) for i in range(2000)]), minlength=20)
    assert counts.min() > 400 and counts.max() < 600
