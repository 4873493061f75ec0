"""A contact sheet of one scripted trial: what the three cameras see, one row per moment.

python -m cel_jax.robots.sim.watch --seed 0 --robot 2 --out trial.jpg
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np

from cel_jax.robots.sim.expert import Expert
from cel_jax.robots.sim.styles import OperatorStyle, operator
from cel_jax.robots.sim.world import PackagingWorld, TaskParams


def contact_sheet(world: PackagingWorld, style: OperatorStyle, seed: int, every: int) -> np.ndarray:
    """uint8 [rows * px, cameras * px, 3]: a row of the cameras every `every` control steps, and of the last moment."""
    world.reset(seed)
    expert = Expert(world, style, seed)
    rows, stage = [], -1
    while world.verdict() is None:
        if world.steps % every == 0:
            rows.append(np.hstack(list(world.render().values())))
        world.step(expert.act())
        if world.stage() != stage:
            stage = world.stage()
            print(f"step {world.steps:4d}  {world.time_s:5.1f} s  stage {stage}", flush=True)
    print(f"step {world.steps:4d}  {world.time_s:5.1f} s  {world.verdict()}", flush=True)
    return np.vstack([*rows, np.hstack(list(world.render().values()))])


def main() -> None:
    """Parses flags and writes the sheet."""
    import simplejpeg

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--robot", type=int, default=0)
    parser.add_argument("--operator", default="exact")
    parser.add_argument("--every_steps", type=int, default=60)
    parser.add_argument("--image_px", type=int, default=224)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("trial.jpg"))
    flags = parser.parse_args()
    world = PackagingWorld(flags.robot, "images", TaskParams(image_px=flags.image_px))
    sheet = contact_sheet(world, operator(flags.operator), flags.seed, flags.every_steps)
    flags.out.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(sheet), quality=90))


if __name__ == "__main__":
    main()
