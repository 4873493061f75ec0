"""A worker's copy of the membership: who occupies each station now, pushed by the agent and compared at every use."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cel_jax.bus.identity import Identity, Registry
from cel_jax.recovery.membership import Artifact, Response, respond

WAIT_STEP_S = 0.2

Ended = Callable[[], bool]
OnRetire = Callable[[Identity], None]
OnEpoch = Callable[[int], None]


class PeerLost(RuntimeError):
    """A wait for a peer ended without it: deadline, stop, or an epoch that advanced."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A station's present worker. epoch: of its connection group. state: `starting` or `ready`."""

    identity: Identity
    epoch: int
    state: str


class PeerView:
    """Membership tables by version; an older table never replaces a newer one. Thread safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._table: Mapping[str, Mapping[str, Any]] = {}
        self._on_retire: list[OnRetire] = []
        self._registries: list[Registry] = []
        self._followers: list[tuple[str, OnEpoch]] = []
        self.version = 0

    def update(self, version: int, table: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes a newer table and tells the subscribers of every worker that it no longer names."""
        with self._changed:
            if version <= self.version:
                return
            gone = _gone(self._table, table)
            self.version, self._table = version, table
            callbacks, registries, followers = list(self._on_retire), list(self._registries), list(self._followers)
            self._changed.notify_all()
        for identity in gone:
            for callback in callbacks:
                callback(identity)
        for registry in registries:
            _follow(registry, gone, table)
        for station, on_epoch in followers:
            if station in table:
                on_epoch(int(table[station]["epoch"]))

    def follow(self, station: str, on_epoch: OnEpoch) -> None:
        """Tells the epoch of a station's connection group, now if it is known and at every newer membership, on the
        heartbeat thread. It must not block. What is given should live as long as this worker."""
        with self._changed:
            self._followers.append((station, on_epoch))
            entry = self._table.get(station)
        if entry is not None:
            on_epoch(int(entry["epoch"]))

    def on_retire(self, callback: OnRetire) -> None:
        """Calls back, on the heartbeat thread, for every worker retired from now on. It must not block."""
        with self._changed:
            self._on_retire.append(callback)

    def feed(self, registry: Registry) -> None:
        """Keeps SwarmLink's registry of this process at the present membership."""
        with self._changed:
            self._registries.append(registry)
            table = self._table
        _follow(registry, [], table)

    def get(self, station: str) -> Peer | None:
        """The station's live worker; None if it is free or unknown."""
        with self._changed:
            return self._get(station)

    def check(self, artifact: Artifact, identity: Identity, epoch: int | None = None) -> Response:
        """Table 2 against this worker's copy of the membership."""
        peer = self.get(identity.station)
        fresh = peer is not None and peer.identity.worker == identity.worker and epoch in (None, peer.epoch)
        return respond(artifact, fresh)

    def wait_fresh(
        self, station: str, deadline_s: float, held: Peer | None = None, ended: Ended = lambda: False
    ) -> Peer:
        """A ready peer. A record `held` from elsewhere is used only if it is fresh, else refused and waited for.

        Raises PeerLost at the deadline or when `ended()` becomes true.
        """
        end = time.monotonic() + deadline_s
        if held is not None and self.check(Artifact.MEMBERSHIP_RECORD, held.identity, held.epoch) is Response.ACCEPT:
            return held
        with self._changed:
            while (peer := self._get(station)) is None or peer.state != "ready":
                left_s = end - time.monotonic()
                if left_s <= 0 or ended():
                    raise PeerLost(f"station {station}: no ready worker within {deadline_s} s; it has {peer}")
                self._changed.wait(min(left_s, WAIT_STEP_S))
            return peer

    def _get(self, station: str) -> Peer | None:
        entry = self._table.get(station)
        return None if entry is None else _peer((station, entry))


def _peer(item: tuple[str, Mapping[str, Any]]) -> Peer | None:
    station, entry = item
    if not entry["worker"]:
        return None
    return Peer(Identity(station, entry["worker"], entry["role"]), int(entry["epoch"]), str(entry["state"]))


def _gone(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> list[Identity]:
    before = [peer for peer in map(_peer, old.items()) if peer is not None]
    return [
        peer.identity for peer in before if new.get(peer.identity.station, {}).get("worker", "") != peer.identity.worker
    ]


def _follow(registry: Registry, gone: Sequence[Identity], table: Mapping[str, Mapping[str, Any]]) -> None:
    """Retires, then admits. A worker that the bus gave up already stays dead there: its end is under way."""
    for identity in gone:
        registry.retire(identity.worker, identity.station)
    for station, entry in table.items():
        if entry["worker"] and not registry.is_dead(entry["worker"]):
            registry.admit(station, entry["worker"])
