"""Stations (fixed places in the fleet) and the workers (processes) that occupy them, one at a time."""

from __future__ import annotations

import dataclasses
import enum
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from cel_jax.bus.identity import Identity


class Role(str, enum.Enum):
    """The tier of a station: what it costs to lose its worker, and in which order a run stops."""

    ENVIRONMENT = "environment"
    TRAINING = "training"
    INFERENCE = "inference"
    STORE = "store"
    HOME = "home"


STOP_ORDER = (Role.ENVIRONMENT, Role.TRAINING, Role.INFERENCE, Role.STORE, Role.HOME)


class Desired(str, enum.Enum):
    """What a person or the controller wants of a station. Maintenance is OFFLINE and back."""

    RUNNING = "running"
    PAUSED = "paused"
    OFFLINE = "offline"


class WorkerState(str, enum.Enum):
    """What a worker says of itself in its beats; DEAD is said of it."""

    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where and how a station's worker runs.

    node: the agent that owns it. environment: `jax` or `reverb`, whose interpreter replaces an argv[0] of `python`.
    env: added environment variables. robot: index of the one robot, None without. robot_lock: a lock file shared by
    every run that could drive this robot; empty: the run's own. safe_stop: a command that stops the robot from
    outside after its worker died; empty: none.
    """

    node: str = "local"
    environment: str = "jax"
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    robot: int | None = None
    robot_lock: str = ""
    safe_stop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Station:
    """A fixed place that lasts for the whole run.

    group: the connection group whose epoch advances when this station's worker is retired; empty: its own.
    unit: stations of one unit fail and restart together (a training group under one collective); empty: alone.
    stall_timeout_s: longest silence of the worker's main loop (`WorkerContext.progress`), 0: not watched.
    """

    name: str
    role: Role
    placement: Placement
    group: str = ""
    unit: str = ""
    stall_timeout_s: float = 0.0

    @property
    def connection_group(self) -> str:
        return self.group or self.name


@dataclasses.dataclass(frozen=True)
class WorkerRecord:
    """A worker as the registry keeps it. Retired records stay, marked dead.

    start_ticks: the kernel's start time of `pid`, so that a reused pid is never taken for this worker.
    """

    identity: Identity
    pid: int
    state: WorkerState
    started_s: float
    incarnation: int = 0
    start_ticks: int = 0
    ended_s: float | None = None
    cause: str = ""


def new_identity(station: Station, incarnation: int) -> Identity:
    """A never used identity; the incarnation makes it readable, the random part makes it unique."""
    return Identity(station.name, f"{station.name}-{incarnation}-{secrets.token_hex(4)}", station.role.value)


def station_to_dict(station: Station) -> dict[str, Any]:
    """Plain values for msgpack, JSON and run.db."""
    values = dataclasses.asdict(station)
    values["role"] = station.role.value
    return values


def station_from_dict(values: dict[str, Any]) -> Station:
    """The inverse of `station_to_dict`; raises TypeError on unknown fields, ValueError on an unknown role."""
    place = dict(values["placement"])
    place["argv"] = tuple(place["argv"])
    place["safe_stop"] = tuple(place.get("safe_stop", ()))
    place["env"] = tuple((str(key), str(value)) for key, value in place["env"])
    return Station(**{**values, "role": Role(values["role"]), "placement": Placement(**place)})


def check_stations(stations: list[Station]) -> None:
    """Raises ValueError for a name used twice, one robot at two stations, or a station without a command."""
    names: set[str] = set()
    robots: dict[tuple[str, int], str] = {}
    for station in stations:
        _check_name(station, names)
        key = (station.placement.node, -1 if station.placement.robot is None else station.placement.robot)
        if station.placement.robot is not None and key in robots:
            raise ValueError(f"robot {key[1]} is at stations {robots[key]} and {station.name}; give it to one of them")
        robots[key] = station.name


def _check_name(station: Station, names: set[str]) -> None:
    if not station.name or "/" in station.name or station.name in names:
        raise ValueError(f"station {station.name!r}: names must be unique, not empty and without '/'")
    if not station.placement.argv:
        raise ValueError(f"station {station.name}: its placement has no argv; give the worker's command")
    names.add(station.name)


def resolve_argv(placement: Placement) -> list[str]:
    """The command with an argv[0] of `python` replaced by the interpreter of the placement's environment."""
    head, *rest = placement.argv
    return [interpreter(placement.environment) if head == "python" else head, *rest]


def interpreter(environment: str) -> str:
    """Path of an environment's Python: CEL_PYTHON_<ENVIRONMENT>, this one for `jax`, else a sibling `.venv-<name>`."""
    named = os.environ.get(f"CEL_PYTHON_{environment.upper()}")
    if named or environment == "jax":
        return named or sys.executable
    sibling = Path(sys.prefix).parent / f".venv-{environment}" / "bin" / "python"
    if not sibling.exists():
        raise FileNotFoundError(
            f"environment {environment!r}: no interpreter at {sibling}; set CEL_PYTHON_{environment.upper()}"
        )
    return str(sibling)
