"""Robots of the user's own: `--config.fleet.robots_are=PACKAGE.MODULE:FUNCTION`, a function of the robot's number."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

from cel_jax.data.episode import Features
from cel_jax.robots.protocol import Robot, RobotError

MakeRobot = Callable[[int], Robot]
METHODS = (
    "robot_id", "calibration_hash", "features", "connect", "reset", "get_observation", "send_action", "verdict",
    "stage", "disconnect",
)  # fmt: skip


def is_plugged(robots_are: str) -> bool:
    """Whether `fleet.robots_are` names a function."""
    return ":" in robots_are


def find_maker(robots_are: str) -> MakeRobot:
    """The function of `module:function`. Raises `RobotError` saying what is missing where."""
    module_name, _, name = robots_are.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there, and misses something itself
        raise RobotError(
            f"fleet.robots_are={robots_are}: no module {module_name!r}; install it in the robots' environment, or "
            "start in the folder that holds it"
        ) from error
    maker = getattr(module, name, None)
    if not callable(maker):
        raise RobotError(f"fleet.robots_are={robots_are}: {module.__file__} has no function {name!r}")
    return maker


def make_plugged(robots_are: str, number: int) -> Robot:
    """Robot `number`. Raises `RobotError` where what was made lacks a method."""
    robot = find_maker(robots_are)(number)
    missing = [name for name in METHODS if not hasattr(type(robot), name) and not hasattr(robot, name)]
    if missing:
        raise RobotError(
            f"fleet.robots_are={robots_are}: robot {number} is a {type(robot).__name__} without {', '.join(missing)}; "
            "see cel_jax/robots/protocol.py, and cel_jax/robots/adapters for robots of gymnasium, LeRobot and openpi"
        )
    return robot


def check_features(robot_id: str, robot: Features, policy: Features) -> None:
    """Raises `RobotError` naming every feature in which a robot differs from what its policy was made for."""
    ours, theirs = dataclasses.asdict(robot), dataclasses.asdict(policy)
    compared = [name for name in ours if name != "robot_type"]
    wrong = [
        f"{name}: the robot has {ours[name]}, the policy {theirs[name]}"
        for name in compared
        if ours[name] != theirs[name]
    ]
    if wrong:
        raise RobotError(f"robot {robot_id} does not fit the run's policy: {'; '.join(wrong)}")
