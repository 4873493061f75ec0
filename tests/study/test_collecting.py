"""The first round is collected once, and an arm that takes it holds what it would have collected itself."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from cel_jax.config import RunConfig
from cel_jax.data.episode import Outcome
from cel_jax.evaluation.trials import TrialResult
from cel_jax.study import collecting
from cel_jax.study.collecting import DONE, Collected, FirstRound
from cel_jax.study.experience import FleetExperience
from tests.replay.episodes import STATE_FEATURES, make_episode

EPISODES = 6


class Robots:
    """A rollout whose trials fail at every third scene, in stage 2."""

    def __init__(self, dies_after: int = EPISODES) -> None:
        self.runs, self._dies_after = 0, dies_after

    def run(self, infer, trials, on_result, version) -> None:
        self.runs += 1
        for count, trial in enumerate(trials):
            if count == self._dies_after:
                raise KeyboardInterrupt
            outcome = Outcome.FAILURE if trial.seed % 3 == 0 else Outcome.SUCCESS
            episode = make_episode(f"e{trial.seed}", 80, outcome, seed=trial.seed)
            stage = 2 if outcome is Outcome.FAILURE else 10
            on_result(TrialResult(trial, f"sim-{trial.robot_seed}", outcome, "", 80, stage, episode))


@pytest.fixture(autouse=True)
def no_policy(monkeypatch) -> None:
    monkeypatch.setattr(collecting, "scene_policy", lambda policy, prompt: None)


def config() -> RunConfig:
    found = RunConfig()
    found.task.name, found.task.mode, found.policy.action_horizon = "phone", "state", 6
    found.study.episodes_per_round, found.fleet.robots = EPISODES, 2
    return found


def experience(folder: Path, robots: Robots, first: FirstRound | None = None, oracle: bool = False) -> FleetExperience:
    return FleetExperience(folder, config(), STATE_FEATURES, robots, threading.Lock(), oracle, first)


@pytest.mark.parametrize("oracle", [False, True])
def test_an_arm_that_takes_the_first_round_holds_what_it_would_have_collected(tmp_path, oracle) -> None:
    robots = Robots()
    first = FirstRound(tmp_path / "first", config(), "start")
    first.collect(robots, None)
    first.collect(robots, None)
    assert robots.runs == 1, "a complete first round was collected again"
    alone, sharing = (
        experience(tmp_path / "alone", Robots(), oracle=oracle),
        experience(tmp_path / "a", robots, first, oracle),
    )
    assert sharing.collect(None, 0, 0) == alone.collect(None, 0, 0) == Collected(6, 4, 480, {2: 2})
    assert robots.runs == 1
    assert sharing.store.sample(200, 1).keys == alone.store.sample(200, 1).keys
    notices = [{(n.episode, n.kind) for n in e.store.next_experience(9)} for e in (alone, sharing)]
    assert notices[0] == notices[1] and len(notices[0]) == EPISODES
    assert sharing.collect(None, 1, 1).episodes == EPISODES and robots.runs == 2, "later rounds are the arm's own"
    assert len(first.files) == EPISODES, "an arm took the shared episodes away"


def test_a_first_round_that_was_interrupted_is_collected_again_and_taken_again(tmp_path) -> None:
    first = FirstRound(tmp_path / "first", config(), "start")
    with pytest.raises(KeyboardInterrupt):
        first.collect(Robots(dies_after=2), None)
    assert not first.complete and len(first.files) == 2
    first.collect(Robots(), None)
    arm = experience(tmp_path / "arm", Robots(), first)
    (tmp_path / "arm" / "collected" / first.files[0].name).write_bytes(b"half")
    assert arm.collect(None, 0, 0).episodes == arm.collect(None, 0, 0).episodes == EPISODES
    assert len({key for key, _ in arm.store.sample(500, 0).keys}) == 4


@pytest.mark.parametrize("oracle", [False, True])
def test_an_arm_that_goes_on_knows_the_stages_of_what_it_collected_before(tmp_path, oracle) -> None:
    before = experience(tmp_path / "arm", Robots(), oracle=oracle)
    before.collect(None, 0, 0)
    expected = before.emphasis()
    before.close()
    again = experience(tmp_path / "arm", Robots(), oracle=oracle)
    assert again.emphasis() == expected and sum(expected[1].values()) == pytest.approx(1.0)
    wins = [n.episode for n in again.store.next_experience(9) if n.kind == "success"]
    lost = [n.episode for n in again.store.next_experience(9) if n.kind == "failure"]
    for episode in wins:
        again.store.embedded(episode)
    again.store.apply_event(lost[0], [(wins[0], 0, 10)])


@pytest.mark.parametrize("change", ["noise", "start", "robots", "task"])
def test_a_first_round_of_other_settings_is_refused_and_says_what_differs(tmp_path, change) -> None:
    FirstRound(tmp_path, config(), "start").collect(Robots(), None)
    other, start, named = config(), "start", {"noise": "policy", "robots": "fleet"}.get(change, change)
    if change == "noise":
        other.policy = dataclasses.replace(other.policy, noise_scale=0.5)
    elif change == "robots":
        other.fleet.first_robot = 3
    elif change == "task":
        other.task.no_progress_s = 9.0
    else:
        start = "another"
    with pytest.raises(ValueError, match=f"another {named};.*--study"):
        FirstRound(tmp_path, other, start)
    assert (tmp_path / DONE).exists()
