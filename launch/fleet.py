"""Runs a fleet: robots collect, failures retrieve, the policy trains and goes back to the robots.

    python -m launch.fleet --config=phone_packaging [--robots=8] [--nofailure_retrieval] [--config.fert.rho=0.8]

Ctrl-C stops cleanly; the same command goes on where it stopped. `--overwrite` begins anew.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from absl import flags

print("cel_jax: a fleet that learns from its own experience", flush=True)  # before the heavy imports

from cel_jax.config import RunConfig, to_dict  # noqa: E402
from launch import options, start_policy  # noqa: E402
from launch.options import OptionError  # noqa: E402

RUNS = flags.DEFINE_string("runs", "runs", "folder of all runs")
RUN = flags.DEFINE_string("run", "", "name of this run's folder; default: the configuration's")
RESUME = flags.DEFINE_bool("resume", False, "go on with a run although the configuration changed")
OVERWRITE = flags.DEFINE_bool("overwrite", False, "delete the run's folder and begin anew")
EVALUATE = flags.DEFINE_bool("evaluate", True, "end with the evaluation table")
LABELLERS = ("simulator", "operator")  # of `fleet.labels`
LINE_EVERY_S = 5.0


def main(argv: list[str]) -> int:
    del argv
    config = options.run_config()
    from cel_jax.workers.wiring import prepare_keys

    check_robots(config)
    check_labels(config)
    config.name = RUN.value or config.name
    run_dir = Path(RUNS.value) / config.name
    prepare_folder(run_dir, config)
    prepare_keys(config)
    if config.fleet.robots_are == "ghost":
        from cel_jax.workers.fleet import prepare_ghosts

        prepare_ghosts(run_dir, config)
    if config.fleet.learner:
        start_policy.prepare(run_dir, config)
    code = run_fleet(run_dir, config)
    if code == 0 and EVALUATE.value and config.fleet.learner:
        _evaluate(run_dir, config)
    return code


def check_robots(config: RunConfig) -> None:
    """Raises OptionError for robots that this machine could not make."""
    from cel_jax.robots.plugged import find_maker, is_plugged
    from cel_jax.robots.protocol import RobotError
    from cel_jax.workers.fleet import robot_environment

    robots_are = config.fleet.robots_are
    if robots_are not in ("simulated", "ghost") and not is_plugged(robots_are):
        raise OptionError(
            f"fleet.robots_are={robots_are!r}: expected simulated, ghost, or yours as package.module:function"
        )
    if is_plugged(robots_are) and robot_environment(config) == "jax":
        try:
            find_maker(robots_are)
        except RobotError as error:
            raise OptionError(str(error)) from error


def check_labels(config: RunConfig) -> None:
    """Raises OptionError where nobody would label."""
    if config.fleet.labels not in LABELLERS:
        raise OptionError(f"fleet.labels={config.fleet.labels!r}: expected {' or '.join(LABELLERS)}")


def _evaluate(run_dir: Path, config: RunConfig) -> None:
    if config.fleet.robots_are != "simulated":
        print("no table: trials on robots of your own are yours to run and to judge", flush=True)
        return
    from launch import evaluate

    evaluate.evaluate_run(run_dir, config)


def prepare_folder(run_dir: Path, config: RunConfig) -> None:
    """A new folder, or an earlier run to go on with. Raises OptionError where the configuration changed."""
    from cel_jax.workers import wiring

    if OVERWRITE.value and run_dir.exists():
        shutil.rmtree(run_dir)
    if (run_dir / wiring.CONFIG_FILE).exists():
        changed = differences(to_dict(wiring.load_config(run_dir)), to_dict(config))
        if changed and not RESUME.value:
            raise OptionError(
                f"{run_dir} was made with another configuration: {'; '.join(changed)}. "
                "Add --resume to go on with the new one, --overwrite to begin anew, or --run=NAME for another folder"
            )
        print(f"resuming {run_dir}" + (f" with {'; '.join(changed)}" if changed else ""), flush=True)
    wiring.save_config(run_dir, config)


def differences(old: dict, new: dict, path: str = "") -> list[str]:
    """`fert.rho: 0.88 -> 0.8` for every value that differs; limits of time and size may change freely."""
    free = {"fleet.minutes", "fleet.max_episodes", "train.max_steps", "fleet.robots"}
    found = []
    for key, value in new.items():
        where = f"{path}{key}"
        if isinstance(value, dict):
            found += differences(old.get(key, {}), value, f"{where}.")
        elif old.get(key) != value and where not in free:
            found.append(f"{where}: {old.get(key)!r} -> {value!r}")
    return found


def run_fleet(run_dir: Path, config: RunConfig) -> int:
    """Runs until a limit or Ctrl-C; returns the exit code."""
    from cel_jax.recovery import launcher
    from cel_jax.recovery.settings import FleetSettings
    from cel_jax.recovery.status import Status
    from cel_jax.workers.fleet import Progress, make_stations

    progress = Progress(run_dir, config)
    if reason := progress.finished():
        print(f"nothing left to run: {reason}", flush=True)
        return 0
    print(f"run folder {run_dir}: {config.fleet.robots} robots, {config.fleet.minutes:g} min", flush=True)
    last_s = 0.0

    def on_tick(status: Status) -> bool:
        nonlocal last_s
        progress.tick()
        reason = progress.finished()
        if time.monotonic() - last_s > LINE_EVERY_S:
            last_s = time.monotonic()
            print(progress.line(status) + (f" | ending: {reason}" if reason else ""), flush=True)
        return bool(reason)

    return launcher.run(run_dir, make_stations(config), on_tick, FleetSettings(recovery=config.recovery))


def cli() -> None:
    options.run(main)


if __name__ == "__main__":
    cli()
