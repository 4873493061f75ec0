"""Measures policies on simulated robots that never collected: the same scenes for every policy.

    python -m launch.evaluate --run=phone_packaging_state --trials=60
    python -m launch.evaluate --config=phone_packaging_state --policy=FOLDER [--policy2=FOLDER]

`--trials` counts for each robot. The table has the form of the paper's Table 11; trials go to the run's run.db.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from absl import flags

from cel_jax.config import RunConfig, from_dict
from launch import options
from launch.options import say


def define() -> None:
    """The flags of this entry point."""
    options.define()
    flags.DEFINE_string("runs", "runs", "folder of all runs")
    flags.DEFINE_string("run", "", "a run: its start policy against its trained one, under its configuration")
    flags.DEFINE_string("policy", "", "a policy's folder")
    flags.DEFINE_string("policy2", "", "another one, for comparison")
    flags.DEFINE_integer("trials", 0, "trials on each held-out robot; default: the configuration's", lower_bound=0)


def main(argv: list[str]) -> int:
    options.begin(argv)
    if bool(flags.FLAGS.run) == bool(flags.FLAGS.policy):
        raise options.OptionError("give either --run=NAME or --policy=FOLDER")
    config = _config()
    run_dir = Path(flags.FLAGS.runs) / config.name
    say(f"evaluating {config.name}: {config.eval.robots} robots, {config.eval.trials_per_robot} trials each")
    if flags.FLAGS.run:
        return evaluate_run(run_dir, config)
    if flags.FLAGS.policy == flags.FLAGS.policy2:
        raise options.OptionError("--policy and --policy2 name the same folder")
    folders = [folder for folder in (flags.FLAGS.policy, flags.FLAGS.policy2) if folder]
    return _evaluate(config, {folder: Path(folder) for folder in folders}, run_dir)


def _config() -> RunConfig:
    """The command line's configuration; a run's own task, policy and name, with the command line's trials."""
    asked = options.run_config()
    if flags.FLAGS.trials:
        asked.eval.trials_per_robot = flags.FLAGS.trials
    if not flags.FLAGS.run:
        return asked
    file = Path(flags.FLAGS.runs) / flags.FLAGS.run / "config.json"
    if not file.exists():
        raise options.OptionError(
            f"no run {flags.FLAGS.run!r}: {file} does not exist; give --run=NAME or --policy=FOLDER"
        )
    config = from_dict(json.loads(file.read_text()))
    config.eval, config.name = asked.eval, flags.FLAGS.run
    return config


def evaluate_run(run_dir: Path, config: RunConfig) -> int:
    """The run's start policy and, where there is one, its trained policy. Returns the exit code."""
    places = {"start": run_dir / "init" / "policy", "trained": run_dir / "policy"}
    found = {name: folder for name, folder in places.items() if (folder / "manifest.json").exists()}
    if not found:
        raise options.OptionError(f"{run_dir}: neither init/policy nor policy holds a policy; run launch.fleet first")
    for name in places.keys() - found.keys():
        say(f"there is no {name} policy: {places[name]} is empty")
    return _evaluate(config, found, run_dir)


def _evaluate(config: RunConfig, policies: dict[str, Path], run_dir: Path) -> int:
    from cel_jax.evaluation.compare import ComparisonError, evaluate_policies

    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        say(evaluate_policies(config, policies, run_dir, say))
    except (ComparisonError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"trials are in {run_dir / 'run.db'}")
    return 0


def cli() -> None:
    options.run(main, define)


if __name__ == "__main__":
    cli()
