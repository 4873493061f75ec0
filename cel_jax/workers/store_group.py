"""Several stores before one learner: what the paper's training workers do, each with a store of its own.

Episodes live in the store that took them. Retrieval is over all of them (one ring): a failure's intervals go to the
stores whose successes they are in, last to the store that holds the failure, so that an event that was cut off is
applied again where it is missing. A batch is drawn from every store in proportion to its chunks, and by priority
within it; the couriers keep the stores about equally full.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import msgpack
import numpy as np

from cel_jax.replay.chunks import ChunkBatch
from cel_jax.replay.notices import ExperienceNotice
from cel_jax.workers.store_client import RemoteStore

Interval = tuple[str, int, int]


class StoreGroup:
    """`cel_jax.fert.interfaces.Store` over one or more stores, in the order of their numbers."""

    def __init__(self, stores: Sequence[RemoteStore]) -> None:
        if not stores:
            raise ValueError("StoreGroup: expected at least one store")
        self._stores, self._home = list(stores), dict[str, int]()
        self._first = 0  # the store that is asked first, in turn

    def reset_learner(self, session: str) -> list[str]:
        """Begins a learner's session; returns the windows' successes, the oldest of each store first."""
        windows = [store.reset_learner(session) for store in self._stores]
        for number, window in enumerate(windows):
            self._home.update(dict.fromkeys(window, number))
        return [name for names in itertools.zip_longest(*windows) for name in names if name is not None]

    def next_experience(self, max_items: int) -> list[ExperienceNotice]:
        """Up to `max_items`, an equal part of each store that has something; another store comes first each time."""
        notices: list[ExperienceNotice] = []
        order = [(self._first + k) % len(self._stores) for k in range(len(self._stores))]
        self._first = order[1 % len(order)]
        for place, number in enumerate(order):
            part = -(-(max_items - len(notices)) // (len(order) - place))
            found = self._stores[number].next_experience(part) if part > 0 else []
            self._home.update({notice.episode: number for notice in found})
            notices += found
        return notices

    def embedded(self, episode: str) -> None:
        self._stores[self._home[episode]].embedded(episode)

    def apply_event(self, failure: str, intervals: list[Interval]) -> bool:
        """A store without a match keeps its weights, as a single store does."""
        home = self._home[failure]
        mine: list[list[Interval]] = [[] for _ in self._stores]
        for interval in intervals:
            mine[self._home[interval[0]]].append(interval)
        for number, found in enumerate(mine):
            if found and number != home:
                self._stores[number].apply_peer_event(failure, found)
        return self._stores[home].apply_event(failure, mine[home])

    def quarantine(self, episode: str, reason: str) -> None:
        self._stores[self._home[episode]].quarantine(episode, reason)

    def sample(self, n: int, seed: int) -> ChunkBatch | None:
        """None while no store has a chunk. Probabilities are those of the whole draw."""
        if len(self._stores) == 1:
            return self._stores[0].sample(n, seed)  # no shares to ask for, nothing to join
        parts = [
            (store.sample(part, seed * len(self._stores) + number), part / n)
            for number, (store, part) in enumerate(zip(self._stores, self._parts(n), strict=True))
            if part
        ]
        drawn = [(batch, share) for batch, share in parts if batch is not None]
        return joined(drawn) if drawn else None

    def _parts(self, n: int) -> list[int]:
        """How many of `n` draws each store gives: in proportion to its chunks, the rest to the fullest."""
        chunks = [store.counters()["window_chunks"] for store in self._stores]
        total = sum(chunks)
        if not total:
            return [0] * len(chunks)
        parts = [n * one // total for one in chunks]
        parts[chunks.index(max(chunks))] += n - sum(parts)
        return parts

    def counters(self) -> dict[str, int]:
        """Sums over the stores."""
        found = [store.counters() for store in self._stores]
        return {name: sum(one[name] for one in found) for name in found[0]}

    def snapshot(self) -> bytes:
        """Of all stores, for the training checkpoint."""
        parts = [store.snapshot() for store in self._stores]
        return parts[0] if len(parts) == 1 else bytes(msgpack.packb(parts))

    def restore(self, snapshot: bytes) -> None:
        """Raises ValueError where the checkpoint was made with another number of stores, RemoteError where a store is
        not the checkpoint's."""
        parts = [snapshot] if len(self._stores) == 1 else msgpack.unpackb(snapshot)
        if len(parts) != len(self._stores):
            raise ValueError(f"the checkpoint has {len(parts)} stores, this run {len(self._stores)}; set fleet.stores")
        for store, part in zip(self._stores, parts, strict=True):
            store.restore(part)


def joined(parts: Sequence[tuple[ChunkBatch, float]]) -> ChunkBatch:
    """One batch of several, each with its share of the draws (by which its probabilities shrink)."""
    batches = [batch for batch, _ in parts]
    first = batches[0]
    whole = sum(share for _, share in parts)
    arrays = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("state", "actions", "action_mask")
    }
    return dataclasses.replace(
        first, **arrays,
        keys=tuple(key for batch in batches for key in batch.keys),
        objects=None if first.objects is None else np.concatenate([batch.objects for batch in batches]),
        images={name: [jpeg for batch in batches for jpeg in batch.images[name]] for name in first.images},
        priority_version=sum(batch.priority_version for batch in batches),
        probabilities=np.concatenate([share / whole * batch.probabilities for batch, share in parts]),
    )  # fmt: skip
