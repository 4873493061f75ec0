"""The registry as an agent's journal tells it, so that identities and epochs go on over an agent's restart. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cel_jax.bus.identity import Identity
from cel_jax.recovery import membership
from cel_jax.recovery.membership import Registry
from cel_jax.recovery.stations import WorkerRecord, WorkerState, station_from_dict


def replay(events: Iterable[dict[str, Any]]) -> Registry:
    """Folds `launched`, `ready` and `retired` events; other kinds do not change the membership."""
    registry = Registry()
    for event in events:
        registry = _apply(registry, event)
    return registry


def _apply(registry: Registry, event: dict[str, Any]) -> Registry:
    if event["kind"] == "launched":
        return membership.admit(registry, station_from_dict(event["place"]), _record(event))
    if event["kind"] not in ("ready", "retired"):
        return registry
    identity = registry.records[event["worker"]].identity
    if event["kind"] == "ready":
        return membership.set_state(registry, identity, WorkerState.READY)
    return membership.retire(registry, identity, event["cause"], event["time_s"])


def _record(event: dict[str, Any]) -> WorkerRecord:
    return WorkerRecord(
        Identity(event["station"], event["worker"], event["place"]["role"]), event["pid"], WorkerState.STARTING,
        event["time_s"], event["incarnation"], event["start_ticks"],
    )  # fmt: skip
