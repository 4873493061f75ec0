"""The planner's RL on terminal success, from the supervised start.

    python -m launch.planner_rl --config=planner_text [--config.rl.rounds=12] [--start=checkpoint]

Begins with the run's supervised planner; --start=checkpoint begins with config.model.checkpoint as it is. Goes on after
the last finished round. Writes runs/<name>/rl.
"""

from __future__ import annotations

from absl import flags

from launch import options
from launch.options import say
from launch.planner_options import CHECKPOINT, define, define_start, start, start_planner


def define_flags() -> None:
    """The flags of this entry point."""
    define()
    define_start()


def main(argv: list[str]) -> int:
    config, folder = start(argv)
    say(f"planner {config.name}: {config.rl.rounds} rounds of {config.rl.groups} groups of {config.rl.attempts}")
    from cel_jax.planner import policy
    from cel_jax.planner.rl import RlRun

    first = start_planner(config, folder)
    if flags.FLAGS.start == CHECKPOINT:
        policy.save(folder / "base", first)  # what the evaluation compares with
    trained = RlRun(config, first, folder / "checkpoints", say).run()
    policy.save(folder / "rl", trained)
    say(f"saved {folder / 'rl'}")
    return 0


def cli() -> None:
    options.run(main, define_flags)


if __name__ == "__main__":
    cli()
