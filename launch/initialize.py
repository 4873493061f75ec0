"""Makes the start policy of a run from demonstrations.

    python -m launch.initialize --config=phone_packaging_state
    python -m launch.initialize --demos=FOLDER_OF_LEROBOT_OR_RLDS_DATA --out=runs/mine/init/policy

Without `--demos` the scripted expert demonstrates on simulated robots. `--trials=N` measures success afterwards, N
trials on each held-out simulated robot.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from absl import flags

from cel_jax.config import RunConfig, from_dict
from launch import options
from launch.options import say


def define() -> None:
    """The flags of this entry point."""
    options.define()
    flags.DEFINE_string("out", "", "the policy's folder; default: runs/<name>/init/policy")
    flags.DEFINE_string("run_config", "", "a run's config.json in place of --config")
    flags.DEFINE_bool("overwrite", False, "replace a policy that is there")
    flags.DEFINE_integer("trials", 0, "afterwards: trials on each held-out simulated robot", lower_bound=0)


def main(argv: list[str], command: str) -> int:
    options.begin(argv)
    config = _config()
    say(f"start policy of {config.name}: loading jax")
    from cel_jax.initialization import start_policy
    from cel_jax.initialization.sft import TrainingDiverged

    folder = Path(flags.FLAGS.out) if flags.FLAGS.out else Path("runs") / config.name / "init" / "policy"
    try:
        start_policy.make_start_policy(config, folder, say, flags.FLAGS.overwrite, command)
    except (start_policy.StartPolicyError, start_policy.DatasetError, TrainingDiverged) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if flags.FLAGS.trials:
        _measure(config, folder)
    return 0


def _config() -> RunConfig:
    if flags.FLAGS.run_config:
        return from_dict(json.loads(Path(flags.FLAGS.run_config).read_text()))
    return options.run_config()


def _measure(config: RunConfig, folder: Path) -> None:
    from cel_jax.evaluation.compare import evaluate_policies
    from cel_jax.initialization.start_policy import add_to_card

    config.eval.trials_per_robot = flags.FLAGS.trials
    table = evaluate_policies(config, {"start": folder}, None, say)
    add_to_card(folder, table)
    say(table)


def cli() -> None:
    typed = shlex.join(["python", "-m", "launch.initialize", *sys.argv[1:]])
    options.run(lambda argv: main(argv, typed), define)


if __name__ == "__main__":
    cli()
