"""The logic of one channel: FIFOs by key, claims with leases, first answer wins. No sockets; the clock is given.

An item keeps its sequence number for life, so that an item whose claim ended is again ahead of everything younger.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from cel_jax.bus.errors import BoundReached

Clock = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class ItemId:
    """Which observation of which process."""

    worker: str
    episode: str
    step: int


@dataclasses.dataclass
class Item:
    """One queued item. `payload` is opaque here; times in seconds of the queue's clock."""

    id: ItemId
    station: str
    key: str
    payload: Any
    size_bytes: int
    arrived_s: float
    expires_s: float
    seq: int
    claimant: str = ""
    lease_ends_s: float = math.inf


@dataclasses.dataclass(frozen=True)
class QueueLimits:
    """Policy when a bound is reached: the newcomer is refused, nothing already queued is dropped."""

    items: int = 1024
    total_bytes: int = 1 << 30


class ChannelQueue:
    """Items of one channel, ready or claimed. Not thread-safe: its server's thread owns it."""

    def __init__(self, name: str, limits: QueueLimits, clock: Clock) -> None:
        self.name, self.limits, self.counts = name, limits, collections.Counter[str]()
        self._clock, self._numbers = clock, itertools.count()
        self._items: dict[ItemId, Item] = {}
        self._ready: dict[str, list[tuple[int, Item]]] = {}  # key -> rising sequence numbers
        self._size_bytes = 0

    def put(
        self, id: ItemId, station: str, key: str, payload: Any, size_bytes: int = 0, expires_s: float = math.inf
    ) -> Any:
        """Appends an item. The same id again (a caller that lost its link) keeps its place and claim, takes the new
        payload and returns the old one; else returns None. Raises BoundReached naming the channel and the bound."""
        twin = self._items.get(id)
        if twin is not None:
            return self._replace(twin, payload, size_bytes, expires_s)
        self._check_bounds(size_bytes)
        now_s = self._clock()
        item = Item(id, station, key, payload, size_bytes, now_s, expires_s, next(self._numbers))
        self._items[id] = item
        self._size_bytes += size_bytes
        self._make_ready(item)
        self.counts["put"] += 1
        return None

    def take(self, claimant: str, target: int, lease_s: float, key: str | None = None) -> list[Item]:
        """Claims up to `target` of the oldest ready items for `lease_s` seconds."""
        heads = self._keys(key)
        oldest = list(itertools.islice(heapq.merge(*heads), target))
        for _, item in oldest:
            self._unready(item)
            item.claimant, item.lease_ends_s = claimant, self._clock() + lease_s
        self.counts["claimed"] += len(oldest)
        return [item for _, item in oldest]

    def is_due(self, target: int, timeout_s: float, key: str | None = None) -> bool:
        """True when `target` items are ready, or the oldest ready one is `timeout_s` seconds old."""
        return self.due_in_s(target, timeout_s, key) <= 0.0

    def due_in_s(self, target: int, timeout_s: float, key: str | None = None) -> float:
        """Seconds until a batch goes out if nothing more arrives; inf when nothing is ready."""
        lists = self._keys(key)
        if sum(len(ready) for ready in lists) >= target:
            return 0.0
        oldest_s = min((ready[0][1].arrived_s for ready in lists), default=math.inf)
        return oldest_s + timeout_s - self._clock()

    def answer(self, id: ItemId) -> Item | None:
        """Ends an item. The first answer gets it; a later one gets None and is counted."""
        item = self._items.get(id)
        if item is None:
            self.counts["late_answers"] += 1
            return None
        self._remove(item)
        self.counts["answered"] += 1
        return item

    def release(self, ids: Iterable[ItemId], claimant: str) -> int:
        """Gives claims of `claimant` back to their places at the front."""
        items = [self._items[id] for id in ids if id in self._items]
        return self._requeue([item for item in items if item.claimant and item.claimant == claimant])

    def end_leases(self) -> int:
        """Requeues items whose lease has ended."""
        now_s = self._clock()
        return self._requeue([item for item in self._items.values() if item.claimant and item.lease_ends_s <= now_s])

    def drop_expired(self) -> list[Item]:
        """Removes ready items whose caller no longer waits. Claimed ones stay: their answer may be under way."""
        now_s = self._clock()
        late = [item for item in self._items.values() if not item.claimant and item.expires_s <= now_s]
        return self._drop(late, "expired")

    def drop_worker(self, worker: str) -> list[Item]:
        """Removes everything that a retired worker had queued, claimed or not."""
        return self._drop([item for item in self._items.values() if item.id.worker == worker], "dropped_of_retired")

    def release_claimant(self, worker: str) -> int:
        """Requeues everything that a retired worker had claimed."""
        return self._requeue([item for item in self._items.values() if item.claimant and item.claimant == worker])

    def next_event_s(self) -> float:
        """Seconds until the first lease ends or item expires; inf when there is none."""
        ends = (item.lease_ends_s if item.claimant else item.expires_s for item in self._items.values())
        return min(ends, default=math.inf) - self._clock()

    def stats(self) -> dict[str, Any]:
        """Depths, bytes, age of the oldest ready item in seconds, and counts of everything dropped or requeued."""
        ready = [item for items in self._ready.values() for _, item in items]
        oldest_s = min((item.arrived_s for item in ready), default=self._clock())
        return {
            "ready": len(ready),
            "claimed": len(self._items) - len(ready),
            "size_bytes": self._size_bytes,
            "oldest_age_s": self._clock() - oldest_s,
            "counts": dict(self.counts),
        }

    def _check_bounds(self, size_bytes: int) -> None:
        if len(self._items) >= self.limits.items:
            self.counts["refused"] += 1
            raise BoundReached(f"channel {self.name!r} is at its bound of {self.limits.items} items")
        if self._size_bytes + size_bytes > self.limits.total_bytes:
            self.counts["refused"] += 1
            raise BoundReached(f"channel {self.name!r} is at its bound of {self.limits.total_bytes} bytes")

    def _replace(self, item: Item, payload: Any, size_bytes: int, expires_s: float) -> Any:
        old, item.payload, item.expires_s = item.payload, payload, expires_s
        self._size_bytes += size_bytes - item.size_bytes
        item.size_bytes = size_bytes
        self.counts["repeated_requests"] += 1
        return old

    def _keys(self, key: str | None) -> list[list[tuple[int, Item]]]:
        if key is None:
            return list(self._ready.values())
        return [self._ready[key]] if key in self._ready else []

    def _make_ready(self, item: Item) -> None:
        item.claimant, item.lease_ends_s = "", math.inf
        bisect.insort(self._ready.setdefault(item.key, []), (item.seq, item), key=lambda entry: entry[0])

    def _unready(self, item: Item) -> None:
        ready = self._ready[item.key]
        del ready[bisect.bisect_left(ready, item.seq, key=lambda entry: entry[0])]
        if not ready:
            del self._ready[item.key]

    def _requeue(self, items: list[Item]) -> int:
        for item in items:
            self._make_ready(item)
        self.counts["requeued"] += len(items)
        return len(items)

    def _drop(self, items: list[Item], reason: str) -> list[Item]:
        for item in items:
            self._remove(item)
        self.counts[reason] += len(items)
        return items

    def _remove(self, item: Item) -> None:
        if not item.claimant:
            self._unready(item)
        del self._items[item.id]
        self._size_bytes -= item.size_bytes
