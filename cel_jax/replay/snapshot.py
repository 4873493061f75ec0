"""What a training checkpoint keeps of a store: event number, weights, counters and the episodes' hashes.

A resume does not roll the store back (robots went on meanwhile); it proves that the log, replayed to the checkpoint's
event, gives the checkpoint's weights bit for bit, and then keeps the log's head.
"""

from __future__ import annotations

import dataclasses

import msgpack
import numpy as np

from cel_jax.replay.store_state import StoreState


class SnapshotMismatch(RuntimeError):
    """A store's folder and a checkpoint that do not belong together."""


@dataclasses.dataclass(frozen=True)
class StoreSnapshot:
    """event: the last event's number. weights: episode -> float64 [C], stored; true weight = stored * scale.
    counters: see `StoreState.counters`. manifest: episode -> SHA-256, of everything that the store has taken."""

    event: int
    scale: float
    weights: dict[str, np.ndarray]
    counters: dict[str, int]
    manifest: dict[str, str]

    def encode(self) -> bytes:
        fields = dataclasses.asdict(self)
        fields["weights"] = {key: weights.astype("<f8").tobytes() for key, weights in self.weights.items()}
        packed: bytes = msgpack.packb({"version": 1, **fields})
        return packed

    @classmethod
    def decode(cls, data: bytes) -> StoreSnapshot:
        fields = msgpack.unpackb(data)
        if fields.pop("version", None) != 1:
            raise SnapshotMismatch("store snapshot: not of version 1; written by another program version")
        fields["weights"] = {key: np.frombuffer(raw, "<f8").copy() for key, raw in fields["weights"].items()}
        return cls(**fields)


def take_snapshot(state: StoreState) -> StoreSnapshot:
    priorities = state.priorities
    weights = {episode: priorities.stored(episode).copy() for episode in priorities.episodes}
    manifest = {key: booked.sha256 for key, booked in state.booked.items()}
    return StoreSnapshot(state.head, priorities.scale, weights, state.counters(), manifest)


def check_snapshot(then: StoreState, snapshot: StoreSnapshot) -> None:
    """Raises `SnapshotMismatch` where the state replayed to the snapshot's event differs from the snapshot."""
    now = take_snapshot(then)
    if now.event != snapshot.event:
        raise SnapshotMismatch(
            f"store: its log ends at event {now.event}, the checkpoint saw event {snapshot.event}; "
            "this is an older or another store's folder"
        )
    if now.manifest != snapshot.manifest or now.counters != snapshot.counters:
        odd = sorted(set(now.manifest.items()) ^ set(snapshot.manifest.items()))
        raise SnapshotMismatch(
            f"store: episodes differ from the checkpoint's at event {snapshot.event}: {odd[:4]}; "
            f"counters {now.counters}, expected {snapshot.counters}"
        )
    _check_weights(now, snapshot)


def _check_weights(now: StoreSnapshot, snapshot: StoreSnapshot) -> None:
    if now.scale != snapshot.scale or list(now.weights) != list(snapshot.weights):
        raise SnapshotMismatch(
            f"store: window or scale differ from the checkpoint's at event {snapshot.event}: scale "
            f"{now.scale!r} against {snapshot.scale!r}"
        )
    for episode, weights in now.weights.items():
        if not np.array_equal(weights, snapshot.weights[episode]):
            raise SnapshotMismatch(
                f"store: weights of episode {episode!r} differ from the checkpoint's at event {snapshot.event}"
            )
