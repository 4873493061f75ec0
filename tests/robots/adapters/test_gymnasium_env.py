"""A gymnasium environment as a robot: what it sees, what it executes, how its episodes end."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.robots.protocol import Robot, RobotError

gymnasium = pytest.importorskip("gymnasium")

from cel_jax.robots.adapters.gymnasium_env import GymnasiumRobot  # noqa: E402
from cel_jax.robots.adapters.mapping import ObservationMap  # noqa: E402

PENDULUM = ObservationMap(state=("observation",))


def pendulum(**more) -> GymnasiumRobot:
    return GymnasiumRobot(gymnasium.make("Pendulum-v1", max_episode_steps=5), "pendulum-0", PENDULUM, **more)


class Pictures(gymnasium.Env):
    """Two cameras, one with its channels first; ends in its third step."""

    metadata = {"render_fps": 10}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, last_info: dict) -> None:
        self._last_info, self._steps = last_info, 0

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return self._seen(), {}

    def step(self, action):
        self._steps += 1
        return self._seen(), 0.0, self._steps == 3, False, self._last_info if self._steps == 3 else {}

    def _seen(self) -> dict:
        top = np.full((48, 64, 3), 10 * self._steps, np.uint8)
        return {"pixels": {"top": top, "side": np.ones((3, 32, 32), np.float32)}, "agent_pos": np.arange(4.0)}


def pictured(last_info: dict, **more) -> GymnasiumRobot:
    cameras = {"head": "pixels.top", "wrist": "pixels.side"}
    view = ObservationMap(state=("agent_pos",), cameras=cameras, image_px=32)
    return GymnasiumRobot(Pictures(last_info), "pictures-0", view, **more)


def test_a_real_environment_is_a_robot_and_ends_by_its_time_limit() -> None:
    robot = pendulum()
    assert isinstance(robot, Robot)
    assert (robot.features.state_dim, robot.features.action_dim, robot.features.fps_hz) == (3, 1, 30.0)
    robot.connect()
    robot.reset(7)
    first = robot.get_observation()
    for step in range(5):
        assert robot.verdict() is None
        assert robot.get_observation().capture_time_s == pytest.approx(step / 30)
        robot.send_action(np.zeros(1, np.float32))
    verdict = robot.verdict()
    assert verdict is not None and (verdict.outcome, verdict.reason) == (Outcome.FAILURE, "time limit")
    robot.reset(7)
    assert robot.verdict() is None
    np.testing.assert_array_equal(robot.get_observation().state, first.state)
    robot.disconnect()


def test_what_was_executed_is_returned_clipped_only_where_asked() -> None:
    robot = pendulum()
    robot.reset(0)
    assert robot.send_action(np.array([5.0], np.float32)).tolist() == [2.0]
    wide = pictured({}, clip=False)
    wide.reset(0)
    assert wide.send_action(np.array([3.0, -4.0], np.float32)).tolist() == [3.0, -4.0]


@pytest.mark.parametrize(
    ("info", "outcome"),
    [({"is_success": True}, Outcome.SUCCESS), ({"success": 1.0}, Outcome.SUCCESS), ({}, Outcome.FAILURE)],
)
def test_success_is_what_the_environment_reports(info: dict, outcome: Outcome) -> None:
    robot = pictured(info)
    robot.reset(0)
    for _ in range(3):
        robot.send_action(np.zeros(2, np.float32))
    verdict = robot.verdict()
    assert verdict is not None and verdict.outcome is outcome


def test_images_are_uint8_rgb_of_the_policy_size_and_left_out_when_not_wanted() -> None:
    robot = pictured({})
    assert [(c.name, c.height, c.width) for c in robot.features.cameras] == [("head", 32, 32), ("wrist", 32, 32)]
    robot.reset(0)
    robot.send_action(np.zeros(2, np.float32))
    seen = robot.get_observation()
    assert seen.images["head"].dtype == np.uint8 and seen.images["head"][16, 16].tolist() == [10, 10, 10]
    assert seen.images["head"][0, 0].tolist() == [0, 0, 0]  # the border of a wide image
    assert (seen.images["wrist"] == 255).all()
    assert robot.get_observation(with_images=False).images == {}


def test_wrong_use_and_wrong_keys_name_robot_and_entry() -> None:
    with pytest.raises(RobotError, match=r"pictures-0: its observation has no 'joints'.*agent_pos"):
        _ = GymnasiumRobot(Pictures({}), "pictures-0", ObservationMap(state=("joints",))).features
    with pytest.raises(RobotError, match="before reset"):
        pendulum().get_observation()
    robot = pendulum()
    robot.reset(0)
    with pytest.raises(RobotError, match="1 finite action numbers"):
        robot.send_action(np.array([np.nan], np.float32))
    with pytest.raises(RobotError, match="expected an RGB image"):
        grey = ObservationMap(state=("observation",), cameras={"head": "observation"})
        _ = GymnasiumRobot(gymnasium.make("Pendulum-v1"), "p", grey).features
