"""Robots of the user's own by the name of their function: what is missing is said before anything moves."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from cel_jax.data.episode import CameraSpec, Features
from cel_jax.robots import plugged
from cel_jax.robots.protocol import RobotError

FEATURES = Features("a", 7, 7, (CameraSpec("head", 96, 96),), None, 30.0, (True,) * 7)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A module of a lab's own."""
    (tmp_path / "lab_robots.py").write_text(
        "class Half:\n    robot_id = 'x'\n    def connect(self): pass\n"
        "def make(number):\n    return Half()\n"
        "NUMBER = 3\n"
    )  # fmt: skip
    (tmp_path / "lab_driver.py").write_text("import no_such_driver\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lab_robots"
    for name in ("lab_robots", "lab_driver"):
        sys.modules.pop(name, None)


def test_what_is_missing_is_named(lab: str) -> None:
    with pytest.raises(RobotError, match=r"no module 'lab_robot'"):
        plugged.find_maker("lab_robot:make")
    with pytest.raises(RobotError, match=r"lab_robots.py has no function 'made'"):
        plugged.find_maker(f"{lab}:made")
    with pytest.raises(RobotError, match="no function 'NUMBER'"):
        plugged.find_maker(f"{lab}:NUMBER")
    with pytest.raises(ModuleNotFoundError, match="no_such_driver"):  # the lab's own mistake keeps its own traceback
        plugged.find_maker("lab_driver:make")
    with pytest.raises(RobotError, match=r"a Half without .*features.*send_action"):
        plugged.make_plugged(f"{lab}:make", 0)


def test_a_robot_that_does_not_fit_its_policy_is_told_every_difference() -> None:
    plugged.check_features("r", dataclasses.replace(FEATURES, robot_type="b"), FEATURES)
    other = dataclasses.replace(FEATURES, state_dim=8, cameras=(CameraSpec("head", 128, 96),))
    with pytest.raises(RobotError, match=r"robot r does not fit.*state_dim: the robot has 8, the policy 7.*cameras"):
        plugged.check_features("r", other, FEATURES)
