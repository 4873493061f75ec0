"""The planner's RL on terminal success, from the supervised start.

    python -m launch.planner_rl --config=planner_text [--config.rl.rounds=12]

Goes on after the last finished round. Writes runs/<name>/rl.
"""

from __future__ import annotations

from launch import options
from launch.options import say
from launch.planner_options import define, start


def main(argv: list[str]) -> int:
    config, folder = start(argv)
    say(f"planner {config.name}: {config.rl.rounds} rounds of {config.rl.groups} groups of {config.rl.attempts}")
    from cel_jax.planner import policy
    from cel_jax.planner.rl import RlRun

    try:
        supervised = policy.load(folder / "sft")
    except FileNotFoundError as error:
        raise options.OptionError(str(error)) from error
    trained = RlRun(config, supervised, folder / "checkpoints", say).run()
    policy.save(folder / "rl", trained)
    say(f"saved {folder / 'rl'}")
    return 0


def cli() -> None:
    options.run(main, define)


if __name__ == "__main__":
    cli()
