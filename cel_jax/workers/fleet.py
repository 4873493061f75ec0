"""The stations of a run, and the words that describe its progress."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from cel_jax.config import RunConfig
from cel_jax.console.desk import DESK
from cel_jax.recovery import rundb
from cel_jax.recovery.stations import Placement, Role, Station, interpreter
from cel_jax.recovery.status import Status, progress_line
from cel_jax.robots.plugged import is_plugged
from cel_jax.workers.published_version import published_version
from cel_jax.workers.wiring import (
    GATE,
    HOME,
    OPERATOR,
    TRAINING,
    ghost_episodes,
    inference_name,
    robot_station,
    save_features,
    store_name,
)

RECENT_EPISODES = 50
# Small matrices on a shared machine: more threads per process only get in each other's way.
_CPU_ENV = (("OMP_NUM_THREADS", "1"), ("TF_CPP_MIN_LOG_LEVEL", "3"))
# Compiled programs are kept: a relaunched worker is back in seconds, and so is the next run.
_XLA_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cel_jax" / "xla"
_XLA_ENV = (
    ("JAX_COMPILATION_CACHE_DIR", str(_XLA_CACHE)),
    ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5"),
)


def store_environment(config: RunConfig) -> str:
    """`reverb` where that environment exists and is wanted, else `jax` (the numpy table)."""
    if config.replay.table == "memory":
        return "jax"
    try:
        interpreter("reverb")
    except FileNotFoundError as error:
        if config.replay.table == "reverb":
            raise FileNotFoundError(f"--replay=reverb: {error}; run `make setup`, or take --replay=memory") from error
        return "jax"
    return "reverb"


def robot_environment(config: RunConfig) -> str:
    """`robot` for robots of the user's own where that environment exists (their drivers may need other packages)."""
    if not is_plugged(config.fleet.robots_are):
        return "jax"
    try:
        interpreter("robot")
    except FileNotFoundError:
        return "jax"
    return "robot"


def make_stations(config: RunConfig) -> list[Station]:
    """One home, the stores, one training group, the inference workers, and one station per robot; a desk where an
    operator labels."""
    fleet = config.fleet
    stations = [_station(HOME, Role.HOME, "home")]
    store_env = store_environment(config)
    stations += [_station(store_name(i), Role.STORE, "store", store_env) for i in range(fleet.stores)]
    if config.bus.tcp_host:
        stations.append(_station(GATE, Role.HOME, "gate"))
    if fleet.labels == OPERATOR:
        stations.append(_station(DESK, Role.HOME, "desk"))
    if fleet.learner:
        stations.append(_station(TRAINING, Role.TRAINING, "training"))
    serves = "inference" if fleet.learner else "inference_stub"
    stations += [_station(inference_name(i), Role.INFERENCE, serves) for i in range(fleet.inference_workers)]
    stations += [robot_place(config, i) for i in range(fleet.robots)]
    return stations


def robot_place(config: RunConfig, index: int, node: str = "") -> Station:
    """The station of one robot, by default on the nodes in turn."""
    place = node or node_name(index % max(1, config.fleet.nodes))
    return _station(
        robot_station(index), Role.ENVIRONMENT, "environment", robot_environment(config), robot=index, node=place
    )


def node_name(index: int) -> str:
    """The first node has everything but the other nodes' robots."""
    return "local" if index == 0 else f"node-{index}"


def _station(
    name: str, role: Role, module: str, environment: str = "jax", robot: int | None = None, node: str = "local"
) -> Station:
    argv = ("python", "-m", f"cel_jax.workers.{module}")
    place = Placement(node=node, environment=environment, argv=argv, env=_CPU_ENV + _XLA_ENV, robot=robot)
    return Station(name, role, place)


def prepare_ghosts(run_dir: Path, config: RunConfig) -> None:
    """The episodes that ghosts replay, recorded once where none are given, and what they show."""
    from cel_jax.robots.ghost_tapes import record_tapes, tape_features

    folder, task = ghost_episodes(run_dir, config), config.task
    if not config.ghost.episodes:
        print(f"ghosts: {config.ghost.tapes} episodes to replay, recorded once", flush=True)
        record_tapes(
            folder, config.ghost.tapes, task=task.name, prompt=task.prompt, mode=task.mode, image_px=task.image_px,
            max_episode_s=task.max_episode_s, no_progress_s=task.no_progress_s,
            image_stride_frames=task.image_stride_frames,
        )  # fmt: skip
    save_features(run_dir, tape_features(folder))


class Progress:
    """Reads run.db about once a second and says how the run goes."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self._db = rundb.open_db(run_dir)
        self._config = config
        self._elapsed_s = float(rundb.get_value(self._db, "elapsed_s", "0"))
        self._last_s = time.monotonic()
        self._steps: list[tuple[float, int]] = []

    @property
    def elapsed_s(self) -> float:
        """Running time of this run, resumed parts included."""
        return self._elapsed_s

    def tick(self) -> None:
        """Counts time and notes it in run.db, so that a resumed run goes on counting."""
        now_s = time.monotonic()
        self._elapsed_s += now_s - self._last_s
        self._last_s = now_s
        rundb.set_value(self._db, "elapsed_s", f"{self._elapsed_s:.1f}")

    def finished(self) -> str:
        """Why the run is over, or ''."""
        fleet = self._config.fleet
        if self._elapsed_s >= 60 * fleet.minutes:
            return f"{fleet.minutes:g} minutes are over"
        if fleet.max_episodes and self.episodes() >= fleet.max_episodes:
            return f"{fleet.max_episodes} episodes are collected"
        if self.train_step() >= self._config.train.max_steps:
            return f"{self._config.train.max_steps} training steps are done"
        return ""

    def episodes(self) -> int:
        return int(self._one("SELECT count(*) FROM episodes WHERE outcome IS NOT NULL"))

    def train_step(self) -> int:
        return int(self._one("SELECT coalesce(max(step), 0) FROM metrics WHERE key = 'loss'"))

    def line(self, status: Status) -> str:
        """One line: time, episodes, success, speeds, policy version, and what is in trouble."""
        success, recent = self._recent()
        share = f"{100 * success / recent:.0f} % of the last {recent}" if recent else "none finished"
        return (
            f"[{self._elapsed_s / 60:5.1f} min] robots {status.ready('environment')}/{_wanted(status)}"
            f" | episodes {self.episodes()}, success {share} | {self._control_rate():.0f} control steps/s"
            f" | train step {self.train_step()}{self._loss()} | policy v{published_version(self._db)}"
            f" | learner: {_note(status)}{_troubles(status)}"
        )

    def _recent(self) -> tuple[int, int]:
        query = "SELECT outcome FROM episodes WHERE outcome IS NOT NULL ORDER BY end_s DESC LIMIT ?"
        outcomes = [row["outcome"] for row in self._db.execute(query, (RECENT_EPISODES,))]
        return outcomes.count("success"), len(outcomes)

    def _control_rate(self) -> float:
        """Control steps of episodes that ended in the last minute, per second."""
        since_s = time.time() - 60
        query = "SELECT coalesce(sum(steps), 0) FROM episodes WHERE end_s > ?"
        return float(self._one(query, (since_s,))) / min(60.0, max(1.0, self._elapsed_s))

    def _loss(self) -> str:
        row = self._db.execute("SELECT value FROM metrics WHERE key = 'loss' ORDER BY step DESC LIMIT 1").fetchone()
        return "" if row is None else f" (loss {row[0]:.3f})"

    def _one(self, query: str, args: tuple = ()) -> float:
        row: sqlite3.Row = self._db.execute(query, args).fetchone()
        return float(row[0])


def _wanted(status: Status) -> int:
    """Robots that take part now, those that joined included."""
    return sum(one.role == Role.ENVIRONMENT.value and one.desired != "offline" for one in status.stations)


def _note(status: Status) -> str:
    notes = [station.note for station in status.stations if station.role == Role.TRAINING.value]
    return notes[0] or "starting" if notes else "none"


def _troubles(status: Status) -> str:
    _, _, troubles = progress_line(status).partition("; ")
    return f" | {troubles}" if troubles else ""
