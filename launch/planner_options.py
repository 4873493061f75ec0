"""Options of the planner's entry points: a planner configuration, and where its runs live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import config_flags

from cel_jax.planner.config import PlannerConfig
from launch import options

if TYPE_CHECKING:
    from cel_jax.planner.policy import Planner

STAGES, CHECKPOINT = ("base", "sft", "rl"), "checkpoint"


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
    _check_table(config)
    config.name = flags.FLAGS.run or config.name
    folder = Path(flags.FLAGS.runs) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    return config, folder


def _check_table(config: PlannerConfig) -> None:
    """Raises OptionError for a tabletop that is unknown or lacks its simulator, before anything is computed."""
    from cel_jax.planner.sites import SimulatorMissing, make_table

    try:
        make_table(config.harness)
    except (ValueError, SimulatorMissing) as error:
        raise options.OptionError(str(error)) from error


def define_start() -> None:
    """`--start`: which planner an entry point begins with."""
    flags.DEFINE_enum(
        "start", "sft", [*STAGES, CHECKPOINT], f"the run's planner, or config.model.{CHECKPOINT} as it is"
    )


def start_planner(config: PlannerConfig, folder: Path) -> Planner:
    """The planner that `--start` names. Raises OptionError where there is none, or none that fits."""
    from cel_jax.planner import policy
    from cel_jax.planner.pretrained.load import load_pretrained

    if flags.FLAGS.start != CHECKPOINT:
        return beginning(lambda: policy.load(folder / flags.FLAGS.start))
    if not config.model.checkpoint:
        raise options.OptionError("--start=checkpoint needs one: --config.model.checkpoint=PATH, or `smollm2`")
    return beginning(lambda: load_pretrained(config.model.checkpoint))


def beginning(load: Callable[[], Planner]) -> Planner:
    """The planner that `load` gives. Raises OptionError where there is none, or none that fits."""
    from cel_jax.planner.policy import PolicyMismatch

    try:
        return load()
    except (FileNotFoundError, PolicyMismatch) as error:
        raise options.OptionError(str(error)) from error
