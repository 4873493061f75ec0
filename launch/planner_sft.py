"""The planner's supervised start: a teacher's successes, rewritten or masked, then SFT.

    python -m launch.planner_sft --config=planner_text [--config.sft.mode=mask]

Writes runs/<name>/base (the untrained planner) and runs/<name>/sft.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from launch import options
from launch.options import say
from launch.planner_options import beginning, define, start


def define_flags() -> None:
    """The flags of this entry point."""
    define()
    flags.DEFINE_bool("overwrite", False, "replace a planner that is there")


def main(argv: list[str]) -> int:
    config, folder = start(argv)
    if (folder / "sft" / "planner.json").exists() and not flags.FLAGS.overwrite:
        raise options.OptionError(
            f"{folder / 'sft'} holds a planner; --overwrite replaces it, --run=NAME begins another"
        )
    say(f"planner {config.name}: {config.sft.teacher_episodes} episodes of the teacher")
    from cel_jax.planner import policy, sft

    demonstrations = sft.teacher_episodes(config)
    base = beginning(lambda: sft.base_planner(config, demonstrations))
    targets = sft.target_turns(config, base, demonstrations, say)
    trained = sft.train(config, base, targets, say)
    policy.save(folder / "base", base)
    policy.save(folder / "sft", trained)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config), indent=1))
    say(f"saved {folder / 'sft'}")
    return 0


def cli() -> None:
    options.run(main, define_flags)


if __name__ == "__main__":
    cli()
