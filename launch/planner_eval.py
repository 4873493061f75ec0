"""Evaluates a run's planners on initial states that never train: the same tasks, states and luck for all of them.

    python -m launch.planner_eval --config=planner_text [--split=validation]

Prints success with Wilson intervals and the paired sign tests; trials go to runs/<name>/evaluation.json.
"""

from __future__ import annotations

import time

from absl import flags

from launch import options
from launch.options import say
from launch.planner_options import STAGES, define, start


def define_flags() -> None:
    """The flags of this entry point."""
    define()
    flags.DEFINE_enum("split", "evaluation", ["evaluation", "validation"], "which initial states")


def main(argv: list[str]) -> int:
    config, folder = start(argv)
    found = [name for name in STAGES if (folder / name / "planner.json").exists()]
    if not found:
        raise options.OptionError(f"{folder}: there is no planner; run launch.planner_sft first")
    say(f"planner {config.name}: evaluating {', '.join(found)}")
    from cel_jax.planner import policy, report
    from cel_jax.planner.trials import evaluate

    trials = {}
    for name in found:
        begin_s = time.monotonic()
        trials[name] = evaluate(config, policy.load(folder / name), config.seed, flags.FLAGS.split)
        say(f"{name}: {len(trials[name])} episodes in {time.monotonic() - begin_s:.0f} s")
    report.write(folder / f"{flags.FLAGS.split}.json", config.seed, trials)
    say(report.render(trials))
    return 0


def cli() -> None:
    options.run(main, define_flags)


if __name__ == "__main__":
    cli()
