"""What training would take, without allocating it: parameters, bytes per device for every part, whether it fits.

    python -m launch.dry_run --config=phone_packaging --config.policy.preset=pi0 --memory_gb=141
    python -m launch.dry_run --config=phone_packaging --config.policy.preset=pi0_lora --memory_gb=24

Exit code 0 where it fits, 1 where it does not. Device memory is this machine's accelerator's, or --memory_gb.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from absl import flags

from launch import options


def define() -> None:
    """The flags of this entry point."""
    options.define()
    flags.DEFINE_integer("devices", 1, "accelerators of the run", lower_bound=1)
    flags.DEFINE_float("memory_gb", 0.0, "of one device; default: this machine's")
    flags.DEFINE_integer("cameras_px", 0, "image side of the robot's cameras; default: the task's", lower_bound=0)


def main(argv: list[str]) -> int:
    options.begin(argv)
    from cel_jax.fert.dry_run import describe, plan
    from cel_jax.models.presets import make_config, trained_as
    from cel_jax.robots.tasks import make_world

    asked, config = flags.FLAGS, options.run_config()
    task = config.task
    robot = make_world(task.name, robot_seed=0, mode=task.mode, image_px=asked.cameras_px or task.image_px).features
    try:
        network = make_config(config.policy.preset, robot, config.policy)
        network = dataclasses.replace(network, dtype=config.train.compute_dtype)
        network = trained_as(network, config.train.remat, config.train.attention)
        made = plan(network, config.train, asked.devices, _memory_bytes(asked.memory_gb))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{config.policy.preset}, remat {network.remat}\n{describe(made)}", flush=True)
    return 0 if made.fits else 1


def _memory_bytes(asked_gb: float) -> int:
    """Asked for, the accelerator's, or the host's where there is none."""
    if asked_gb:
        return int(asked_gb * 1e9)
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cli() -> None:
    options.run(main, define)


if __name__ == "__main__":
    cli()
