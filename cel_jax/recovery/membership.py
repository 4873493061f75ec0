"""The registry: who occupies which station, under which epoch. Pure: every operation returns a new registry.

Admit, retire and re-admit are the only operations (paper, "Stations and workers"). `check` compares an artifact's
identity with the registry and answers with the response of the paper's Table 2.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from cel_jax.bus.identity import Identity
from cel_jax.recovery.stations import Station, WorkerRecord, WorkerState


class MembershipError(RuntimeError):
    """An operation that the registry's state does not allow."""


class Artifact(enum.Enum):
    """What can outlive the process that made it (paper, Table 2)."""

    MEMBERSHIP_RECORD = "membership record"
    CONTROL_MESSAGE = "control message in flight"
    CONNECTION = "connection held by a peer"
    DATA = "data in the pipeline"
    QUEUED_TRANSFER = "queued transfer"


class Response(enum.Enum):
    """What to do with an artifact (paper, Table 2); ACCEPT when its identity is the present one."""

    ACCEPT = "accept"
    REFUSE_AND_WAIT = "refuse and wait for a fresh record"
    IGNORE = "ignore"
    REBUILD = "rebuild under a new epoch"
    DROP_AND_RECEIVE_AGAIN = "drop and receive again"
    REPLAY = "replay on the new connection"


STALE_RESPONSE: Mapping[Artifact, Response] = {
    Artifact.MEMBERSHIP_RECORD: Response.REFUSE_AND_WAIT,
    Artifact.CONTROL_MESSAGE: Response.IGNORE,
    Artifact.CONNECTION: Response.REBUILD,
    Artifact.DATA: Response.DROP_AND_RECEIVE_AGAIN,
    Artifact.QUEUED_TRANSFER: Response.REPLAY,
}


@dataclasses.dataclass(frozen=True)
class Registry:
    """stations by name; occupant: the live worker of a station; records: every worker ever, by worker id;
    epochs: version of each connection group, advanced when one of its members is retired."""

    stations: Mapping[str, Station] = dataclasses.field(default_factory=dict)
    occupant: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: Mapping[str, WorkerRecord] = dataclasses.field(default_factory=dict)
    epochs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, int] = dataclasses.field(default_factory=dict)


def admit(registry: Registry, station: Station, record: WorkerRecord) -> Registry:
    """Puts a new worker at a free station. Raises MembershipError if it is occupied or the identity was used."""
    name, worker = station.name, record.identity.worker
    if name in registry.occupant:
        raise MembershipError(f"station {name}: {registry.occupant[name]} is still there; retire it before {worker}")
    if worker in registry.records:
        raise MembershipError(f"station {name}: identity {worker} was used before; launch under a new one")
    return dataclasses.replace(
        registry,
        stations={**registry.stations, name: station},
        occupant={**registry.occupant, name: worker},
        records={**registry.records, worker: record},
        epochs={station.connection_group: 1, **registry.epochs},
        launches={**registry.launches, name: max(record.incarnation, registry.launches.get(name, 0))},
    )


def retire(registry: Registry, identity: Identity, cause: str, ended_s: float) -> Registry:
    """Marks a worker dead and advances its group's epoch. A stale identity changes nothing: reports of one failure
    that arrive together or late retire once (paper: one relaunch)."""
    if check(registry, Artifact.CONTROL_MESSAGE, identity) is not Response.ACCEPT:
        return registry
    group = registry.stations[identity.station].connection_group
    dead = dataclasses.replace(registry.records[identity.worker], state=WorkerState.DEAD, ended_s=ended_s, cause=cause)
    return dataclasses.replace(
        registry,
        occupant={name: worker for name, worker in registry.occupant.items() if name != identity.station},
        records={**registry.records, identity.worker: dead},
        epochs={**registry.epochs, group: registry.epochs[group] + 1},
    )


def readmit(registry: Registry, record: WorkerRecord) -> Registry:
    """Puts a new worker at a station that was retired. Raises MembershipError for a station never seen."""
    name = record.identity.station
    if name not in registry.stations:
        raise MembershipError(f"station {name}: never admitted; known are {sorted(registry.stations)}")
    return admit(registry, registry.stations[name], record)


def set_state(registry: Registry, identity: Identity, state: WorkerState) -> Registry:
    """Takes a worker's own word on its state; a dead worker stays dead."""
    if not is_current(registry, identity):
        return registry
    record = dataclasses.replace(registry.records[identity.worker], state=state)
    return dataclasses.replace(registry, records={**registry.records, identity.worker: record})


def is_current(registry: Registry, identity: Identity) -> bool:
    """A local comparison: does this worker occupy its station now?"""
    return registry.occupant.get(identity.station) == identity.worker


def epoch_of(registry: Registry, station: str) -> int:
    """The epoch of a station's connection group; 0 before its first worker."""
    known = registry.stations.get(station)
    return 0 if known is None else registry.epochs.get(known.connection_group, 0)


def check(registry: Registry, artifact: Artifact, identity: Identity, epoch: int | None = None) -> Response:
    """Table 2: ACCEPT if the artifact's worker occupies its station (and its epoch, where it carries one, is the
    group's), else the response that suits this kind of artifact."""
    stale_epoch = epoch is not None and epoch != epoch_of(registry, identity.station)
    return respond(artifact, is_current(registry, identity) and not stale_epoch)


def respond(artifact: Artifact, fresh: bool) -> Response:
    """The row of Table 2 for an artifact whose identity was compared with the registry."""
    return Response.ACCEPT if fresh else STALE_RESPONSE[artifact]


def unit_members(registry: Registry, station: str) -> tuple[Identity, ...]:
    """The live workers that must restart with this station's: its recovery unit without itself."""
    unit = registry.stations[station].unit if station in registry.stations else ""
    return tuple(
        Identity(name, worker, registry.stations[name].role.value)
        for name, worker in registry.occupant.items()
        if unit and name != station and registry.stations[name].unit == unit
    )


def to_table(registry: Registry) -> dict[str, dict[str, Any]]:
    """What peers need: station -> worker ('' when free), epoch, state, role."""
    table = {}
    for name, station in registry.stations.items():
        worker = registry.occupant.get(name, "")
        state = registry.records[worker].state.value if worker else WorkerState.DEAD.value
        table[name] = {
            "worker": worker, "epoch": epoch_of(registry, name), "state": state, "role": station.role.value,
            "group": station.connection_group,
        }  # fmt: skip
    return table
