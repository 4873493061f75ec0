"""A fleet of robots that this project does not know: gymnasium environments named on the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_fleet import FLAGS, LABELLED, ROOT, Fleet, check_ledger

pytest.importorskip("gymnasium")

MINE = "tests.robots.adapters.gym_packaging"
NAMES = "SELECT count(DISTINCT robot) FROM episodes WHERE robot LIKE 'gym-%' AND outcome IS NOT NULL"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_plugged_robots_collect_and_their_policy_trains(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "--minutes=30", f"--config.fleet.robots_are={MINE}:make", "--config.fleet.first_robot=40")
    try:
        fleet.wait(lambda: fleet.one(NAMES) == 2 and fleet.one(LABELLED) >= 4, "episodes of both robots")
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.process.wait(120) == 0, fleet.text()[-3000:]
    finally:
        if fleet.process.poll() is None:
            fleet.process.kill()
    check_ledger(fleet)


@pytest.mark.slow
def test_a_robot_of_another_shape_is_told_so_before_it_moves(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "--minutes=30", f"--config.fleet.robots_are={MINE}:make_one_joint_short")
    logs = fleet.run_dir / "logs" / "robot-00"
    try:
        fleet.wait(lambda: any("state_dim: the robot has" in p.read_text() for p in logs.glob("*.log")), "the reason")
        assert fleet.one(LABELLED) == 0
        fleet.wait(lambda: "does not fit the run's policy" in fleet.text(), "the reason on the screen")
    finally:
        fleet.process.send_signal(signal.SIGINT)
        fleet.process.wait(120)


def test_a_function_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launch.fleet", *FLAGS, f"--runs={tmp_path}"]
    for robots_are, said in (("nolab.robots:make", "no module 'nolab.robots'"), ("real", "package.module:function")):
        ended = subprocess.run(
            [*command, f"--config.fleet.robots_are={robots_are}"], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 2 and said in ended.stderr, ended.stderr
        assert not (tmp_path / "fleet").exists()
