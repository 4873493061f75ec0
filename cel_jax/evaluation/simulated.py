"""The simulated robots and their scripted demonstrator, as the rollout's worker processes make them."""

from __future__ import annotations

import dataclasses
from typing import Any

from cel_jax.config import TaskConfig
from cel_jax.evaluation.trials import Driver, RolloutOptions, Trial
from cel_jax.robots.protocol import Robot
from cel_jax.robots.tasks import make_expert, make_robot


@dataclasses.dataclass(frozen=True)
class MakeSimulated:
    """robot_seed -> a simulated robot of the task; picklable."""

    task: TaskConfig

    def __call__(self, robot_seed: int) -> Robot:
        task = self.task
        return make_robot(
            task.name,
            robot_seed=robot_seed,
            mode=task.mode,
            image_px=task.image_px,
            pose_range=task.pose_range,
            no_progress_s=task.no_progress_s,
            max_episode_s=task.max_episode_s,
        )


def expert_driver(robot: Any, trial: Trial) -> Driver:
    """The scripted demonstrator in the style that the trial's tag names (`exact` without one)."""
    return make_expert(robot.world, trial.tag or "exact", trial.seed)


def options_for(task: TaskConfig, execute_frames: int, **more: Any) -> RolloutOptions:
    """Options with the task's own fields filled in."""
    return RolloutOptions(
        execute_frames=execute_frames,
        task=task.name,
        prompt=task.prompt,
        image_stride_frames=task.image_stride_frames,
        **more,
    )
