"""Simulated robots with real physics that keep ledgers: `--config.fleet.robots_are=bench.physical_robots:make`."""

from __future__ import annotations

import os
from pathlib import Path

from cel_jax.robots.ghost_ledger import Ledger
from cel_jax.robots.ledgered import LedgeredRobot
from cel_jax.robots.tasks import make_robot
from cel_jax.workers.wiring import load_config


def make(number: int) -> LedgeredRobot:
    """Robot `number` of the run that this worker belongs to."""
    run_dir = Path(os.environ["CEL_RUN_DIR"])
    config = load_config(run_dir)
    task, fleet = config.task, config.fleet
    robot = make_robot(
        task.name, robot_seed=number, mode=task.mode, image_px=task.image_px, pose_range=task.pose_range,
        no_progress_s=task.no_progress_s, max_episode_s=task.max_episode_s, real_time=fleet.real_time,
    )  # fmt: skip
    return LedgeredRobot(robot, Ledger(run_dir / "ledger" / f"{os.environ['CEL_STATION']}.jsonl"))
