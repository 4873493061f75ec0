"""Demonstrations by the scripted expert: what a teleoperator's recordings are to a real fleet.

They train the start policy and nothing else: FERT's targets come from autonomous episodes alone.
Shape letters: T frames, A action numbers.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from collections.abc import Iterator

import numpy as np

from cel_jax.config import InitConfig, TaskConfig
from cel_jax.data.demonstrations import Demonstration
from cel_jax.data.episode import Outcome
from cel_jax.data.images import encode_jpeg
from cel_jax.robots.tasks import make_expert, make_world

DISTURBANCE_MEMORY = 0.935  # per control step: half a second at 30 Hz


@dataclasses.dataclass(frozen=True)
class _Order:
    task: TaskConfig
    robot_seed: int
    scene_seed: int
    operator: str
    pose_range: float
    disturbance_rad: float
    with_poses: bool
    keep_failures: bool


class Disturbance:
    """Smooth joint noise on what is executed, never on what is taught (as DART does): from a place beside the path,
    the demonstrator's next action leads back. Its level differs from one demonstration to the next.
    """

    def __init__(self, seed: int, level_rad: float, joints: np.ndarray) -> None:
        self._rng = np.random.default_rng([0xDA27, seed])
        self._scale = level_rad * self._rng.uniform(0.0, 1.0) * joints
        self._value = np.zeros(len(joints))

    def next(self) -> np.ndarray:
        """float32 [A], radians; an Ornstein-Uhlenbeck process with a memory of half a second."""
        fresh = self._rng.normal(size=len(self._value)) * np.sqrt(1 - DISTURBANCE_MEMORY**2)
        self._value = DISTURBANCE_MEMORY * self._value + fresh
        return (self._scale * self._value).astype(np.float32)


def collect(task: TaskConfig, init: InitConfig, processes: int = 0) -> Iterator[Demonstration]:
    """Yields `init.num_demos` demonstrations, in the order of their scenes, whatever the processes.

    Only successful ones, unless `init.keep_failures`.

    Raises RuntimeError where fewer than a fifth of the trials are kept.
    """
    context = multiprocessing.get_context("spawn")
    tried = found = 0
    with context.Pool(processes or os.cpu_count()) as pool:
        for demonstration in pool.imap(_record, _orders(task, init)):
            tried += 1
            if demonstration is not None:
                found += 1
                yield demonstration
            if found == init.num_demos:
                return
    raise RuntimeError(f"{found} of {tried} demonstrations succeeded; {init.num_demos} were asked for: check the task")


def _orders(task: TaskConfig, init: InitConfig) -> list[_Order]:
    from cel_jax.robots.sim.styles import operators

    styles = operators(init.operators)
    return [
        _Order(
            task,
            init.first_robot + index % init.demo_robots,
            1_000_003 * (init.seed + 1) + index,
            styles[index % len(styles)].name,
            init.pose_range,
            init.disturbance_rad,
            init.pose_loss_weight > 0,
            init.keep_failures,
        )
        for index in range(5 * init.num_demos)
    ]


def _record(order: _Order) -> Demonstration | None:
    task = order.task
    world = make_world(
        task.name,
        robot_seed=order.robot_seed,
        mode=task.mode,
        image_px=task.image_px,
        pose_range=order.pose_range,
        no_progress_s=task.no_progress_s,
        max_episode_s=task.max_episode_s,
    )
    world.reset(order.scene_seed)
    expert = make_expert(world, order.operator, order.scene_seed)
    disturbance = Disturbance(order.scene_seed, order.disturbance_rad, np.array(world.features.delta_mask))
    rows = []
    while world.verdict() is None:
        seen = world.observe(with_images=world.steps % task.image_stride_frames == 0)
        jpegs = {name: encode_jpeg(image) for name, image in seen.images.items()}
        action = expert.act()
        taught = not expert.deliberate_error
        world.step(action + disturbance.next())
        objects = world.objects() if order.with_poses else seen.objects
        rows.append((seen.state, action, objects, jpegs, taught))
    verdict = world.verdict()
    failed = verdict is None or verdict.outcome is not Outcome.SUCCESS
    if failed and not order.keep_failures:
        return None
    return _assemble(f"demo-{order.robot_seed}-{order.scene_seed}", task.prompt, world.features.fps_hz, rows)


def _assemble(name: str, prompt: str, fps_hz: float, rows: list[tuple]) -> Demonstration:
    state, action, objects, jpegs, taught = zip(*rows, strict=True)
    seen_steps = [step for step, images in enumerate(jpegs) if images]
    cameras = jpegs[seen_steps[0]] if seen_steps else {}
    return Demonstration(
        id=name,
        task_prompt=prompt,
        state=np.stack(state).astype(np.float32),
        action=np.stack(action).astype(np.float32),
        image_steps=np.array(seen_steps, np.int32),
        images={camera: tuple(jpegs[step][camera] for step in seen_steps) for camera in cameras},
        fps_hz=fps_hz,
        objects=None if objects[0] is None else np.stack(objects),
        taught=np.array(taught),
    )
