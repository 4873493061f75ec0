"""A robot that keeps its own account: what it writes is what the census computes of the stored episode."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.data.episode import Observation, Outcome
from cel_jax.robots import ledgered
from cel_jax.robots.ghost_census import episode_digest
from cel_jax.robots.ghost_ledger import Ledger, read_ledger
from cel_jax.robots.ledgered import LedgeredRobot
from cel_jax.robots.protocol import Robot, Verdict
from tests.replay.episodes import STATE_FEATURES, make_episode


class Replays:
    """Shows an episode's states and executes its actions, whatever it is told."""

    robot_id, calibration_hash, features = "replays", "c", STATE_FEATURES

    def __init__(self, episode) -> None:
        self._episode, self._step = episode, 0

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def reset(self, seed: int) -> None:
        self._step = 0

    def get_observation(self, with_images: bool = True) -> Observation:
        return Observation({}, self._episode.state[self._step], None, float(self._step))

    def send_action(self, action: np.ndarray) -> np.ndarray:
        self._step += 1
        return self._episode.action[self._step - 1]

    def verdict(self) -> Verdict | None:
        return Verdict(Outcome.SUCCESS, "") if self._step == len(self._episode.state) else None

    def stage(self) -> int:
        return 3


def test_its_digest_is_that_of_the_recorded_episode_and_its_pauses_are_noted(tmp_path, monkeypatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(ledgered.time, "monotonic", lambda: now_s[0])
    episode = make_episode("e", 40, Outcome.SUCCESS, seed=3)
    robot = LedgeredRobot(Replays(episode), Ledger(tmp_path / "robot-00.jsonl"))
    assert isinstance(robot, Robot) and robot.robot_id == "replays"
    robot.connect()
    robot.reset(0)
    while robot.verdict() is None:
        robot.get_observation()
        now_s[0] += 4.0 if now_s[0] == 0.0 else 0.1  # the first wait is the reset's, no pause
        robot.send_action(np.zeros(16, np.float32))
    now_s[0] += 60.0  # the label
    robot.on_labelled("e")
    robot.reset(1)
    robot.get_observation()
    robot.send_action(np.zeros(16, np.float32))
    now_s[0] += 2.5
    robot.send_action(np.zeros(16, np.float32))
    facts = read_ledger(tmp_path / "robot-00.jsonl")
    assert [fact["fact"] for fact in facts] == [
        "connect",
        "reset",
        "act",
        "verdict",
        "labelled",
        "reset",
        "act",
        "pause",
    ]
    assert facts[4]["digest"] == facts[3]["digest"] == episode_digest(episode)
    assert facts[-1]["seconds"] == pytest.approx(2.5) and facts[3]["frames"] == 40
