"""The scripted demonstrator packs the phone, recovers from misses and can take over."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.robots.sim.expert import Expert
from cel_jax.robots.sim.styles import OPERATORS, OperatorStyle, operator, operators
from cel_jax.robots.sim.trial import Trial, run_trial, wilson
from cel_jax.robots.sim.world import PackagingWorld

MISSING = OperatorStyle("misses", miss_probability=1.0)


def _trials(style: OperatorStyle, seeds: range) -> list[Trial]:
    worlds = [PackagingWorld(100 + i) for i in range(4)]
    return [run_trial(worlds[s % 4], style, s) for s in seeds]


def _rate(trials: list[Trial]) -> float:
    return sum(t.verdict.outcome is Outcome.SUCCESS for t in trials) / len(trials)


def test_packs_the_phone_in_twenty_to_forty_seconds() -> None:
    for trial in _trials(operator("exact"), range(3)):
        assert trial.verdict.outcome is Outcome.SUCCESS, trial.verdict
        assert 20 * 30 <= trial.steps <= 40 * 30


def test_missed_grasps_are_shown_and_corrected() -> None:
    trial = _trials(MISSING, range(1, 2))[0]
    assert trial.verdict.outcome is Outcome.SUCCESS, trial.verdict
    assert trial.empty_grasps >= 4


def test_frames_of_a_deliberate_miss_are_told() -> None:
    world = PackagingWorld(1)
    world.reset(0)
    expert = Expert(world, MISSING, 0)
    told = []
    while world.stage() == 0:
        world.step(expert.act())
        told.append(expert.deliberate_error)
    assert any(told) and not all(told)


def test_motion_is_smooth() -> None:
    world = PackagingWorld(2)
    world.reset(4)
    expert = Expert(world, operator("exact"), 4)
    actions = []
    while world.verdict() is None:
        actions.append(expert.act())
        world.step(actions[-1])
    speed = np.abs(np.diff(np.array(actions)[:, [i for i in range(16) if i not in (7, 15)]], axis=0)) * 30
    assert speed.max() < 3.2 and world.guard.held_actions == 0
    assert world.guard.clipped_actions < 0.02 * len(actions)


def test_takes_over_in_the_middle_of_a_trial() -> None:
    world = PackagingWorld(1)
    world.reset(2)
    first = Expert(world, operator("exact"), 2)
    while world.stage() < 2 or not world.facts.any_held.any():
        world.step(first.act())
    second = Expert(world, operator("ada"), 9)
    while world.verdict() is None:
        world.step(second.act())
    assert world.verdict().outcome is Outcome.SUCCESS, world.verdict()


def test_operators_by_name() -> None:
    assert len(operators("mixed")) == 5 and operators("ada") == (OPERATORS["ada"],)
    with pytest.raises(ValueError, match="did you mean 'dana'"):
        operator("danna")


def test_wilson_interval_against_published_values() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.mark.slow
def test_success_without_noise_across_robots() -> None:
    assert _rate(_trials(operator("exact"), range(200, 240))) >= 0.95


@pytest.mark.slow
def test_noise_is_the_failure_knob() -> None:
    rough = _rate(_trials(OperatorStyle("rough", noise_mm=12.0), range(12)))
    assert rough < 0.6


@pytest.mark.slow
def test_a_careless_step_leaves_the_others_careful() -> None:
    gus = operator("gus")
    assert [gus.noise_at(stage) for stage in (0, 4, 5, 6, 9)] == [1.5, 1.5, 25.0, 1.5, 1.5]
    failed = [t.stage for t in _trials(gus, range(12)) if t.verdict.outcome is not Outcome.SUCCESS]
    assert len(failed) >= 3 and failed.count(5) / len(failed) >= 0.75
