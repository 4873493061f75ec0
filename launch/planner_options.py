"""Options of the planner's entry points: a planner configuration, and where its runs live."""

from __future__ import annotations

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from cel_jax.planner.config import PlannerConfig
from launch import options


def define() -> None:
    """`--config` (a planner's), `--runs` and `--run`."""
    path = options.config_path("planner_text")
    config_flags.DEFINE_config_file("config", path, "configuration name or file", lock_config=False)
    flags.DEFINE_string("runs", "runs", "folder of all runs")
    flags.DEFINE_string("run", "", "name of this run's folder; default: the configuration's")


def start(argv: list[str]) -> tuple[PlannerConfig, Path]:
    """The configuration and the run's folder, which exists afterwards. Raises OptionError for what is no planner's."""
    options.begin(argv)
    config = flags.FLAGS.config
    if not isinstance(config, PlannerConfig):
        raise options.OptionError("this configuration is a fleet's, not a planner's; for example --config=planner_text")
    config.name = flags.FLAGS.run or config.name
    folder = Path(flags.FLAGS.runs) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    return config, folder
