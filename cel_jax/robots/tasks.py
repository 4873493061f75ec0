"""The tasks by name. The simulator is imported only when something is made of a task."""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cel_jax.robots.sim.expert import Expert
    from cel_jax.robots.sim.robot import SimulatedRobot
    from cel_jax.robots.sim.styles import OperatorStyle
    from cel_jax.robots.sim.world import PackagingWorld


@dataclasses.dataclass(frozen=True)
class Task:
    """What one task is called, what the policy is told, and its steps."""

    name: str
    prompt: str
    stage_names: tuple[str, ...]

    @property
    def num_stages(self) -> int:
        return len(self.stage_names)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "phone_packaging",
            "Pack the phone.",
            (
                "phone case",
                "manual",
                "charging cable",
                "charging adapter",
                "handover",
                "adapter placement",
                "case into box",
                "phone into box",
                "lid over box",
                "closing",
            ),
        ),
    )
}


def make_task(name: str) -> Task:
    """The named task; an unknown name is refused with the known ones and the nearest."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown task {name!r}; known: {', '.join(sorted(TASKS))}{hint}")
    return TASKS[name]


def make_world(
    name: str,
    *,
    robot_seed: int,
    mode: str = "state",
    image_px: int = 96,
    pose_range: float = 1.0,
    no_progress_s: float = 4.0,
    max_episode_s: float = 45.0,
) -> PackagingWorld:
    """The headless world of one robot instance, for evaluators that drive many in one process."""
    make_task(name)
    from cel_jax.robots.sim.world import PackagingWorld, TaskParams

    return PackagingWorld(robot_seed, mode, TaskParams(image_px, pose_range, no_progress_s, max_episode_s))


def make_robot(
    name: str,
    *,
    robot_seed: int,
    mode: str = "images",
    image_px: int = 96,
    pose_range: float = 1.0,
    no_progress_s: float = 4.0,
    max_episode_s: float = 45.0,
    real_time: bool = False,
) -> SimulatedRobot:
    """A simulated robot for the named task. `mode`: `images` or `state`."""
    make_task(name)
    from cel_jax.robots.sim.robot import SimulatedRobot
    from cel_jax.robots.sim.world import TaskParams

    params = TaskParams(image_px, pose_range, no_progress_s, max_episode_s)
    return SimulatedRobot(robot_seed, mode, params, real_time)


def make_expert(world: PackagingWorld, style: OperatorStyle | str, seed: int) -> Expert:
    """The scripted demonstrator for a world (`robot.world` of a simulated robot), from its present moment on."""
    from cel_jax.robots.sim.expert import Expert
    from cel_jax.robots.sim.styles import operator

    return Expert(world, operator(style) if isinstance(style, str) else style, seed)
