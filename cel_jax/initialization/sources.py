"""Where demonstrations come from: a folder of somebody's data, or the scripted expert."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from cel_jax.config import RunConfig
from cel_jax.data.demonstrations import DatasetError, Demonstration, DemoSet, open_demos
from cel_jax.data.episode import CameraSpec, Features
from cel_jax.data.images import DamagedImage, fitted
from cel_jax.initialization.demonstrate import collect
from cel_jax.models.presets import make_config
from cel_jax.robots.tasks import make_world

Say = Callable[[str], None]
REPORT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Demos:
    """Demonstrations of one robot type. origin: where they come from, for the card."""

    features: Features
    demonstrations: tuple[Demonstration, ...]
    origin: str

    @property
    def num_frames(self) -> int:
        return sum(len(d.state) for d in self.demonstrations)


def load_demos(config: RunConfig, say: Say) -> Demos:
    """From `config.init.demos`, or from the expert where that is empty."""
    return from_folder(config, say) if config.init.demos else from_expert(config, say)


def from_expert(config: RunConfig, say: Say) -> Demos:
    """`init.num_demos` successful demonstrations on robots that neither collect nor evaluate."""
    task, init = config.task, config.init
    world = make_world(
        task.name, robot_seed=init.first_robot, mode=task.mode, image_px=task.image_px, pose_range=init.pose_range
    )
    say(f"{init.num_demos} demonstrations by the scripted expert on {init.demo_robots} robots")
    found = tuple(_reported(collect(task, init), init.num_demos, say))
    return Demos(world.features, found, f"scripted expert, {init.demo_robots} robots from {init.first_robot}")


def from_folder(config: RunConfig, say: Say) -> Demos:
    """At most `init.num_demos` demonstrations; cameras are cropped and resized to the network's square on the way.

    What is missing or damaged is named and left out. Raises `DatasetError` where nothing usable is left or the robot
    has no camera that the policy could see with.
    """
    path, limit = pathlib.Path(config.init.demos), config.init.num_demos
    px = image_px(path, config)
    task = config.task
    opened = open_demos(path, None, lambda name, image: fitted(image, task.name, name, px), task.image_stride_frames)
    say(opened.summary())
    if len(opened) > limit:
        say(f"reading at most {limit} of {len(opened)} (--config.init.num_demos)")
    found = tuple(_reported(itertools.islice(_undamaged(opened, say), limit), min(limit, len(opened)), say))
    if not found:
        raise DatasetError(f"{path}: none of its {len(opened)} demonstrations can be read; copy the data set again")
    prompted = tuple(d if d.task_prompt else dataclasses.replace(d, task_prompt=config.task.prompt) for d in found)
    return Demos(square(opened.features, px), prompted, f"{path.parent.name}/{path.name}")


def image_px(path: pathlib.Path, config: RunConfig) -> int:
    """The side of the network's images for the robot in the folder. Raises `DatasetError` where it has no cameras."""
    features = open_demos(path).features
    if not features.cameras:
        raise DatasetError(
            f"{path}: robot {features.robot_type} has no camera images in this data; the policy needs images "
            "(object poses come from simulation alone): record cameras, or give another folder"
        )
    return make_config(config.policy.preset, features, config.policy).image_px


def square(features: Features, px: int) -> Features:
    """The same robot with images as the policy sees them."""
    cameras = tuple(CameraSpec(camera.name, px, px) for camera in features.cameras)
    return dataclasses.replace(features, cameras=cameras)


def _undamaged(opened: DemoSet, say: Say) -> Iterator[Demonstration]:
    """What can be read; the rest is named. A reader that cannot go on behind a damage ends the pass."""
    source, read, damaged = opened.demos, 0, 0
    while True:
        try:
            demonstration = next(source)
        except StopIteration:
            break
        except (DatasetError, DamagedImage) as error:
            damaged += 1
            say(f"skipped: {error}")
            continue
        read += 1
        yield demonstration
    lost = len(opened) - read - damaged
    if lost > 0:
        say(f"skipped: {lost} demonstrations that lie behind the damage")


def _reported(demonstrations: Iterable[Demonstration], wanted: int, say: Say) -> Iterator[Demonstration]:
    """Passes demonstrations on and says every few seconds how many there are."""
    begin_s = told_s = time.monotonic()
    for count, demonstration in enumerate(demonstrations, 1):
        yield demonstration
        if time.monotonic() - told_s > REPORT_S:
            told_s = time.monotonic()
            say(f"demonstrations: {count} of {wanted}, {told_s - begin_s:.0f} s")


def split(demos: Demos, share: float, seed: int) -> tuple[list[Demonstration], list[Demonstration]]:
    """Training and held-out demonstrations: whole episodes, at least one held out where there are two."""
    count = len(demos.demonstrations)
    held = min(count - 1, max(1, round(share * count))) if share > 0 else 0
    order = np.random.default_rng(seed).permutation(count)
    chosen = set(order[:held].tolist())
    parts: tuple[list[Demonstration], list[Demonstration]] = ([], [])
    for index, demonstration in enumerate(demos.demonstrations):
        parts[index in chosen].append(demonstration)
    return parts
