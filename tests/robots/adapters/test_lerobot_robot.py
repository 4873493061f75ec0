"""A LeRobot arm as a robot: its dictionaries in a fixed order, our limits before its own, home before every episode."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.robots.adapters.lerobot_robot import LeRobotRobot
from cel_jax.robots.adapters.mapping import ObservationMap
from cel_jax.robots.adapters.openpi_environment import OpenpiRobot
from cel_jax.robots.adapters.pace import Pace
from cel_jax.robots.protocol import Robot, RobotError
from cel_jax.robots.safety import SafetyLimits

MOTORS = ("lift.pos", "turn.pos", "gripper.pos")
LIMITS = SafetyLimits(
    low=(-90.0, -90.0, 0.0), high=(90.0, 90.0, 100.0), max_velocity=(300.0,) * 3, max_step=(10.0,) * 3
)


def pace(ticks: list[float] | None = None) -> Pace:
    """A period that takes no time."""
    return Pace(30.0, clock=lambda: 0.0, sleep=(ticks if ticks is not None else []).append)


class Arm:
    """Shaped as lerobot.robots.Robot: moves to what it is sent, by at most `reach` a command."""

    name = "so101"
    calibration = {"lift": "MotorCalibration(id=1)"}  # noqa: RUF012

    def __init__(self, reach: float = 1e9) -> None:
        self.at, self.reach, self.sent, self.is_connected = dict.fromkeys(MOTORS, 0.0), reach, [], False

    @property
    def observation_features(self) -> dict:
        return dict.fromkeys(MOTORS, float) | {"front": (48, 64, 3)}

    @property
    def action_features(self) -> dict:
        return dict.fromkeys(MOTORS, float)

    def connect(self) -> None:
        self.is_connected = True

    def get_observation(self) -> dict:
        return {**dict(reversed(self.at.items())), "front": np.zeros((48, 64, 3), np.uint8)}

    def send_action(self, action: dict) -> dict:
        moved = {m: self.at[m] + float(np.clip(action[m] - self.at[m], -self.reach, self.reach)) for m in MOTORS}
        self.at = moved
        self.sent.append(moved)
        return moved

    def disconnect(self) -> None:
        self.is_connected = False


def test_numbers_keep_the_order_of_the_action_features() -> None:
    arm = Arm()
    robot = LeRobotRobot(arm, "so101-0", LIMITS, image_px=32, pace=pace())
    assert isinstance(robot, Robot)
    assert robot.features.delta_mask == (True, True, False) and robot.features.state_dim == 3
    robot.connect()
    robot.reset(0)
    robot.send_action(np.array([1.0, 2.0, 3.0], np.float32))
    assert arm.sent[-1] == {"lift.pos": 1.0, "turn.pos": 2.0, "gripper.pos": 3.0}
    seen = robot.get_observation()
    assert seen.state.tolist() == [1.0, 2.0, 3.0] and seen.images["front"].shape == (32, 32, 3)
    robot.disconnect()
    robot.disconnect()
    assert not arm.is_connected


def test_our_limits_come_first_and_what_the_driver_sent_is_recorded() -> None:
    arm = Arm(reach=4.0)
    robot = LeRobotRobot(arm, "so101-0", LIMITS, pace=pace())
    robot.reset(0)
    assert robot.send_action(np.array([500.0, -2.0, 1.0], np.float32)).tolist() == [4.0, -2.0, 1.0]
    with pytest.raises(RobotError, match="finite"):
        robot.send_action(np.array([np.nan, 0.0, 0.0], np.float32))


def test_home_is_driven_to_in_steps_before_the_scene_is_reset() -> None:
    arm, order = Arm(), []
    robot = LeRobotRobot(
        arm, "so101-0", LIMITS, home=(35.0, 0.0, 0.0), reset_scene=lambda: order.append(arm.at["lift.pos"]), pace=pace()
    )
    robot.reset(0)
    assert order == [35.0] and [sent["lift.pos"] for sent in arm.sent] == [10.0, 20.0, 30.0, 35.0]


def test_a_home_that_is_never_reached_is_an_error() -> None:
    robot = LeRobotRobot(Arm(), "so101-0", LIMITS, home=(200.0, 0.0, 0.0), pace=pace())
    with pytest.raises(RobotError, match="not home after 20 s"):
        robot.reset(0)


def test_an_emergency_stop_ends_the_drive_home() -> None:
    arm = Arm(reach=1e-6)
    robot = LeRobotRobot(arm, "so101-0", LIMITS, home=(30.0, 0.0, 0.0), pace=Pace(30.0, lambda: 0.0, lambda s: stop()))

    def stop() -> None:
        robot.emergency_stop()

    robot.connect()
    with pytest.raises(RobotError, match="so101-0: stopped on its way home"):
        robot.reset(0)
    assert len(arm.sent) == 1, "nothing is sent after the stop"


def test_a_cable_that_is_out_is_said_with_the_robot() -> None:
    class Dead(Arm):
        def connect(self) -> None:
            raise OSError("/dev/ttyACM0: no such device")

    with pytest.raises(RobotError, match=r"so101-3: cannot connect.*ttyACM0.*check power"):
        LeRobotRobot(Dead(), "so101-3", LIMITS, pace=pace()).connect()
    with pytest.raises(RobotError, match="limits have 2 numbers, its actions 3"):
        LeRobotRobot(Arm(), "so101-3", SafetyLimits((0.0,) * 2, (1.0,) * 2, (1.0,) * 2, (1.0,) * 2))


def test_the_pace_never_sends_commands_in_a_burst() -> None:
    now, slept = [0.0], []
    pace = Pace(10.0, clock=lambda: now[0], sleep=slept.append)
    pace.wait()
    assert slept == [pytest.approx(0.1)]
    now[0] = 5.0  # a long pause
    pace.wait()
    pace.wait()
    assert len(slept) == 2 and slept[1] == pytest.approx(0.1)


class AlohaLike:
    """Shaped as openpi_client.runtime.environment.Environment; complete after two actions."""

    def __init__(self) -> None:
        self.applied: list[np.ndarray] = []

    def reset(self) -> None:
        self.applied = []

    def is_episode_complete(self) -> bool:
        return len(self.applied) == 2

    def get_observation(self) -> dict:
        return {"state": np.zeros(3), "images": {"cam_high": np.zeros((3, 16, 16), np.uint8)}}

    def apply_action(self, action: dict) -> None:
        self.applied.append(action["actions"])


def test_an_openpi_environment_ends_by_its_own_word_and_its_success_may_be_asked() -> None:
    view = ObservationMap(state=("state",), cameras={"cam_high": "images.cam_high"}, image_px=16)
    for answer, outcome in ((True, Outcome.SUCCESS), (False, Outcome.FAILURE), (None, None)):
        env = AlohaLike()
        robot = OpenpiRobot(
            env, "aloha-0", view, joints=(True, True, False), fps_hz=50.0, limits=LIMITS,
            success=lambda _, answer=answer: answer, pace=pace(),
        )  # fmt: skip
        assert isinstance(robot, Robot) and robot.features.delta_mask == (True, True, False)
        robot.reset(0)
        assert robot.send_action(np.array([99.0, 0.0, 0.0], np.float32)).tolist() == pytest.approx([6.0, 0.0, 0.0])
        assert robot.verdict() is None
        robot.send_action(np.zeros(3, np.float32))
        verdict = robot.verdict()
        assert (verdict and verdict.outcome) == outcome
