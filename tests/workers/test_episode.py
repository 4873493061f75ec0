"""One episode on a toy robot: what is asked, executed and recorded."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.bus.channels import ActionReply, StepId
from cel_jax.data.episode import Features, Observation, Outcome
from cel_jax.data.frame_log import decode_frame
from cel_jax.robots.protocol import StaleFrame, Verdict
from cel_jax.workers.episode import LATE_FRAMES, EpisodeRun, FreshFrames, Stopped
from cel_jax.workers.wiring import Wiring
from tests.workers.conftest import FEATURES, make_header


class ToyRobot:
    """Clips what it is sent, and ends after ten steps."""

    features: Features = FEATURES
    robot_id = "toy-1"

    def __init__(self) -> None:
        self.steps = 0

    def get_observation(self, with_images: bool = True) -> Observation:
        return Observation({}, np.full(3, self.steps, np.float32), np.zeros((2, 4), np.float32), self.steps / 30)

    def send_action(self, action: np.ndarray) -> np.ndarray:
        self.steps += 1
        return np.clip(action, -1, 1).astype(np.float32)

    def verdict(self) -> Verdict | None:
        return Verdict(Outcome.SUCCESS, "done") if self.steps == 10 else None

    def stage(self) -> int:
        return 4


class Infer:
    """Answers with actions that tell the step they were asked at."""

    def __init__(self) -> None:
        self.asked: list[StepId] = []

    def infer(self, id: StepId, task: str, arrays: dict, deadline_s: float) -> ActionReply:
        assert float(arrays["state"][0]) == id.step, "the question carries the present state"
        self.asked.append(id)
        return ActionReply(id, 40 + len(self.asked), {"actions": np.full((6, 3), 2.0, np.float32)})


class Writer:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def append(self, payload: bytes) -> None:
        self.frames.append(payload)


def make_run(wiring: Wiring) -> tuple[EpisodeRun, Infer, Writer]:
    header, _ = make_header("e1")
    infer, writer = Infer(), Writer()
    return EpisodeRun(wiring, ToyRobot(), infer, header, writer), infer, writer  # type: ignore[arg-type]


def test_records_what_was_executed_with_its_policy_version(wiring: Wiring) -> None:
    run, infer, writer = make_run(wiring)
    assert run.until_verdict().outcome is Outcome.SUCCESS
    frames = [decode_frame(data) for data in writer.frames]
    assert [frame.step for frame in frames] == list(range(10))
    assert [id.step for id in infer.asked] == [0, 4, 8], "a new question after execute_frames actions"
    assert [frame.policy_version for frame in frames] == [41] * 4 + [42] * 4 + [43] * 2
    np.testing.assert_array_equal(frames[5].action, np.ones(3))  # 2.0 was asked, 1.0 was executed
    assert [float(frame.state[0]) for frame in frames] == list(range(10)), "the state before each action"
    assert {frame.stage for frame in frames} == {4}


def test_a_stop_ends_the_episode(wiring: Wiring) -> None:
    run, _, writer = make_run(wiring)
    wiring.context.stopping = True  # type: ignore[attr-defined]
    with pytest.raises(Stopped):
        run.until_verdict()
    assert writer.frames == []


def test_a_frozen_camera_is_a_fault_and_a_late_frame_is_none() -> None:
    frames = FreshFrames(deadline_s=0.0)
    frames.check(1.0, 0, "toy-1")
    for step in range(1, LATE_FRAMES):
        frames.check(1.0, step, "toy-1")
    frames.check(1.1, LATE_FRAMES, "toy-1")  # it came after all: the count begins anew
    frames.check(1.1, LATE_FRAMES, "toy-1")  # two looks at one step are no late frame
    with pytest.raises(StaleFrame, match=r"toy-1.*again"):
        for step in range(LATE_FRAMES + 1, 2 * LATE_FRAMES + 2):
            frames.check(1.1, step, "toy-1")


def test_a_robot_that_stands_still_for_less_than_the_deadline_goes_on() -> None:
    frames = FreshFrames(deadline_s=60.0)
    for step in range(20):
        frames.check(1.0, step, "toy-1")
