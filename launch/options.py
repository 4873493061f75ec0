"""Command-line options shared by the entry points: `--config=NAME`, `--config.path=value` and the ablation flags."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags

from cel_jax.config import RunConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

# flag -> (path in the configuration, kind). Short names are the paper's; long ones carry their unit.
ALIASES: dict[str, tuple[str, str]] = {
    "failure_retrieval": ("fert.failure_retrieval", "bool"),
    "h_pre": ("fert.h_pre_frames", "int"),
    "h_post": ("fert.h_post_frames", "int"),
    "rho": ("fert.rho", "float"),
    "sync_interval": ("train.sync_interval_steps", "int"),
    "sync_interval_steps": ("train.sync_interval_steps", "int"),
    "robots": ("fleet.robots", "int"),
    "num_robots": ("fleet.robots", "int"),
    "replay": ("replay.table", "str"),
    "uniform_share": ("replay.uniform_share", "float"),
    "minutes": ("fleet.minutes", "float"),
    "demos": ("init.demos", "str"),
    "trials_per_robot": ("eval.trials_per_robot", "int"),
    "retrieval_scope": ("fert.scope", "str"),
}

_DEFINE: dict[str, Callable[..., object]] = {
    "bool": flags.DEFINE_bool,
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "str": flags.DEFINE_string,
}


class OptionError(ValueError):
    """A command line that cannot be followed; the message says what to type instead."""


def config_names() -> list[str]:
    """The names that `--config` takes."""
    return sorted(path.stem for path in CONFIGS.glob("*.py") if not path.stem.startswith("_"))


def config_path(name: str) -> str:
    """The file of a bare configuration name; a path is passed on. Raises OptionError with the nearest names."""
    if name.endswith(".py") or ".py:" in name:
        return name
    if name in config_names():
        return str(CONFIGS / f"{name}.py")
    nearest = difflib.get_close_matches(name, config_names(), n=1)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    raise OptionError(f"unknown config {name!r}; there are {', '.join(config_names())}.{hint}")


def resolve_argv(argv: list[str]) -> list[str]:
    """Maps `--config=NAME` (or `--config NAME`) to its file, before absl parses."""
    resolved = list(argv)
    for index, word in enumerate(argv):
        if word.startswith("--config="):
            resolved[index] = "--config=" + config_path(word.removeprefix("--config="))
        elif word == "--config" and index + 1 < len(argv):
            resolved[index + 1] = config_path(argv[index + 1])
    return resolved


def define(default: str = "phone_packaging") -> None:
    """Defines `--config` and the aliases. Call once per entry point, before `parse`."""
    config_flags.DEFINE_config_file("config", config_path(default), "configuration name or file", lock_config=False)
    for name, (path, kind) in ALIASES.items():
        _DEFINE[kind](name, None, f"short for --config.{path}")


def run_config() -> RunConfig:
    """The parsed configuration with the aliases applied.

    Raises OptionError where a flag and a config value on the command line disagree.
    """
    config: RunConfig = flags.FLAGS.config
    for name, (path, _) in ALIASES.items():
        value = getattr(flags.FLAGS, name)
        if value is not None:
            _apply(config, name, path, value)
    return config


def _apply(config: RunConfig, name: str, path: str, value: object) -> None:
    section, field = path.split(".")
    part = getattr(config, section)
    given = any(word.partition("=")[0] == f"--config.{path}" for word in sys.argv)
    if given and getattr(part, field) != value:
        raise OptionError(f"--{name}={value} and --config.{path}={getattr(part, field)} disagree: give one of them")
    setattr(part, field, value)


def say(text: str) -> None:
    """A line of progress, at once."""
    print(text, flush=True)


def begin(argv: list[str]) -> None:
    """Silences what jax tells of accelerators that it did not find. Raises OptionError for words that are no flags."""
    logging.set_verbosity(logging.WARNING)
    if argv[1:]:
        raise OptionError(f"unexpected words {argv[1:]}; options begin with --")


def run(main: Callable[[list[str]], int | None], define_flags: Callable[[], None] = define) -> None:
    """An entry point: resolves names, parses, runs; an OptionError is one line and exit code 2."""
    try:
        sys.argv = resolve_argv(sys.argv)
        define_flags()
        app.run(main)
    except OptionError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
