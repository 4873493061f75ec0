"""The home of channels: the replica that hosts their queues and answers put, request, fetch, answer, retire, stats."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cel_jax.bus.arrays import Buffer, size_bytes
from cel_jax.bus.deferred import Deferred
from cel_jax.bus.errors import BoundReached, StaleIdentity, WireError
from cel_jax.bus.failures import Counters, OnFailure
from cel_jax.bus.identity import Identity, Registry
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.queue import ChannelQueue, Clock, Item, ItemId, QueueLimits
from cel_jax.bus.security import ServerCurve
from cel_jax.bus.server import Handler, Server

_MAX_TARGET = 4096
_IDLE_S = 1.0


@dataclasses.dataclass(frozen=True)
class HomeLimits:
    """Bounds of one home. `lease_s`: how long a claim holds without an answer."""

    channels: int = 64
    fetches: int = 256
    lease_s: float = 10.0
    queue: QueueLimits = dataclasses.field(default_factory=QueueLimits)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """What the queue carries: the caller's header, its buffers, and where the answer goes."""

    header: Mapping[str, Any]
    buffers: Sequence[Buffer]
    answer: Deferred | None


@dataclasses.dataclass(frozen=True)
class _Fetch:
    deferred: Deferred
    worker: str
    channel: str
    key: str | None
    target: int
    timeout_s: float
    ends_s: float


class Home:
    """Channels and the fetches that wait for them. Its server's thread owns it; give `handlers` and `tick` to one."""

    def __init__(
        self, limits: HomeLimits | None = None, registry: Registry | None = None, clock: Clock = time.monotonic
    ) -> None:
        self.limits, self.registry, self.counters = limits or HomeLimits(), registry or Registry(), Counters()
        self._clock = clock
        self._channels: dict[str, ChannelQueue] = {}
        self._fetches: list[_Fetch] = []

    def handlers(self) -> dict[str, Handler]:
        """Operations of a home, by name."""
        return {
            "put": self.put,
            "request": self.request,
            "fetch": self.fetch,
            "answer": self.answer,
            "retire": self.retire,
            "stats": self.stats,
        }

    def put(self, request: Request) -> Reply:
        """Queues an item that wants no reply; a consumer ends it by `answer`. Header as for `request`."""
        self._enqueue(request, None)
        return Reply()

    def request(self, request: Request) -> Deferred:
        """Queues an observation; answered by the first `answer` for its (worker, episode, step).

        Header: channel, key, station, worker, episode (strings), step (int), and whatever the consumer needs.
        """
        answer = Deferred()
        self._enqueue(request, answer)
        return answer

    def fetch(self, request: Request) -> Deferred:
        """Claims a batch. Header: channel, target, timeout_s, wait_s, and key (optional: only this FIFO).

        Answers when `target` items are ready or the oldest is `timeout_s` old, and with an empty batch after `wait_s`.
        """
        if self.registry.is_dead(request.sender.worker):
            raise StaleIdentity(f"worker {request.sender.worker!r} was retired and may not fetch")
        if len(self._fetches) >= self.limits.fetches:
            raise BoundReached(f"home holds its bound of {self.limits.fetches} waiting fetches")
        head, key = request.header, request.header.get("key")
        if key is not None and not isinstance(key, str):
            raise WireError(f"expected header field 'key' as a string or absent, got {key!r:.80}")
        target = min(max(1, _get(head, "target", int)), _MAX_TARGET)
        wait_s, timeout_s = _get(head, "wait_s", float), _get(head, "timeout_s", float)
        channel, deferred = _get(head, "channel", str), Deferred()
        ends_s = self._clock() + wait_s
        self._fetches.append(_Fetch(deferred, request.sender.worker, channel, key, target, timeout_s, ends_s))
        return deferred

    def answer(self, request: Request) -> Reply:
        """Answers items. Header: channel, items: [{worker, episode, step, buffers: count, ...}]. Each item's map goes
        to its caller as the reply's header, with its buffers. Replies how many were first."""
        queue = self._queue(request.header)
        if self.registry.is_dead(request.sender.worker):
            self.counters.add("answers_of_retired")
            raise StaleIdentity(f"worker {request.sender.worker!r} was retired; its answers are dropped")
        items, start, first = _get(request.header, "items", list), 0, 0
        counts = [_get(head, "buffers", int) for head in items]
        if min(counts, default=0) < 0 or sum(counts) != len(request.buffers):
            raise WireError(f"answer to {len(items)} items: expected {counts} buffers, got {len(request.buffers)}")
        for head, count in zip(items, counts, strict=True):
            first += self._answer_one(queue, head, request.buffers[start : start + count])
            start += count
        return Reply({"first": first, "late": len(items) - first})

    def retire(self, request: Request) -> Reply:
        """Drops what a dead worker queued and requeues what it had claimed. Header: worker."""
        return Reply(self.retire_worker(_get(request.header, "worker", str)))

    def stats(self, request: Request) -> Reply:
        """Depth, age and counts of every channel."""
        channels = {name: queue.stats() for name, queue in self._channels.items()}
        return Reply({"channels": channels, "fetches": len(self._fetches), "counts": self.counters.snapshot()})

    def tick(self) -> float:
        """Ends leases, drops what nobody waits for, serves the fetches. Returns seconds until it is needed again."""
        wait_s = _IDLE_S
        for queue in self._channels.values():
            queue.end_leases()
            for item in queue.drop_expired():
                _refuse(item, "its deadline passed in the queue")
            wait_s = min(wait_s, queue.next_event_s())
        self._fetches = [fetch for fetch in self._fetches if not self._serve(fetch)]
        return max(0.0, min([wait_s, *(self._due_in_s(fetch) for fetch in self._fetches)]))

    def retire_worker(self, worker: str) -> dict[str, Any]:
        """As `retire`, for the thread that owns this home."""
        self.registry.retire(worker)
        dropped, requeued = 0, 0
        for queue in self._channels.values():
            gone = queue.drop_worker(worker)
            for item in gone:
                _refuse(item, "its worker was retired")
            dropped += len(gone)
            requeued += queue.release_claimant(worker)
        for fetch in [fetch for fetch in self._fetches if fetch.worker == worker]:
            fetch.deferred.fail(StaleIdentity(f"worker {worker!r} was retired"))
            self._fetches.remove(fetch)
        return {"dropped": dropped, "requeued": requeued}

    def _enqueue(self, request: Request, answer: Deferred | None) -> None:
        head = request.header
        id, station = _item_id(head), _get(head, "station", str)
        queue = self._queue(head)
        self._admit(station, id.worker)
        expires_s = self._clock() + request.deadline_s if answer else float("inf")
        entry, size = _Entry(head, request.buffers, answer), size_bytes(request.buffers)
        old = queue.put(id, station, _get(head, "key", str), entry, size, expires_s)
        if old is not None and old.answer is not None:
            old.answer.fail(StaleIdentity(f"{id} was asked again; the newer call gets the answer"))

    def _admit(self, station: str, worker: str) -> None:
        if self.registry.is_dead(worker):
            self.counters.add("requests_of_retired")
            raise StaleIdentity(f"station {station!r}: worker {worker!r} was retired or replaced; nothing was queued")
        predecessor = self.registry.admit(station, worker)
        if predecessor is not None:
            self.counters.add("predecessors_replaced")
            self.retire_worker(predecessor)

    def _queue(self, head: Mapping[str, Any]) -> ChannelQueue:
        name = _get(head, "channel", str)
        if name not in self._channels:
            if len(self._channels) >= self.limits.channels:
                raise BoundReached(f"home holds its bound of {self.limits.channels} channels; {name!r} is not one")
            self._channels[name] = ChannelQueue(name, self.limits.queue, self._clock)
        return self._channels[name]

    def _answer_one(self, queue: ChannelQueue, head: Mapping[str, Any], buffers: Sequence[Buffer]) -> int:
        item = queue.answer(_item_id(head))
        if item is None:
            return 0
        if item.payload.answer is not None and not item.payload.answer.reply(Reply(head, buffers)):
            self.counters.add("answers_after_deadline")
        return 1

    def _serve(self, fetch: _Fetch) -> bool:
        if fetch.deferred.done:
            return True
        queue = self._channels.get(fetch.channel)
        if queue is not None and queue.is_due(fetch.target, fetch.timeout_s, fetch.key):
            self._send_batch(fetch, queue)
            return True
        if self._clock() >= fetch.ends_s:
            return fetch.deferred.reply(Reply({"items": []}))
        return False

    def _send_batch(self, fetch: _Fetch, queue: ChannelQueue) -> None:
        items = queue.take(fetch.worker, fetch.target, self.limits.lease_s, fetch.key)
        ids = [item.id for item in items]
        fetch.deferred.on_undelivered = lambda: self._take_back(queue, ids, fetch.worker)
        heads = [{"header": dict(item.payload.header), "buffers": len(item.payload.buffers)} for item in items]
        buffers = [buffer for item in items for buffer in item.payload.buffers]
        fetch.deferred.reply(Reply({"items": heads}, buffers))

    def _take_back(self, queue: ChannelQueue, ids: Sequence[ItemId], worker: str) -> None:
        queue.release(ids, worker)
        self.counters.add("undelivered_batches")

    def _due_in_s(self, fetch: _Fetch) -> float:
        queue = self._channels.get(fetch.channel)
        due_s = queue.due_in_s(fetch.target, fetch.timeout_s, fetch.key) if queue is not None else float("inf")
        return min(due_s, fetch.ends_s - self._clock())


def serve_home(
    endpoint: str,
    identity: Identity,
    home: Home | None = None,
    curve: ServerCurve | None = None,
    on_failure: OnFailure | None = None,
) -> Server:
    """A server with one home on it."""
    home = home or Home()
    return Server(endpoint, identity, home.handlers(), curve, tick=home.tick, on_failure=on_failure)


def _item_id(head: Any) -> ItemId:
    return ItemId(_get(head, "worker", str), _get(head, "episode", str), _get(head, "step", int))


def _get(head: Any, name: str, kind: type) -> Any:
    value = head.get(name) if isinstance(head, Mapping) else None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise WireError(f"expected header field {name!r} of type {kind.__name__}, got {value!r:.80}")
    return value


def _refuse(item: Item, why: str) -> None:
    if item.payload.answer is not None:
        item.payload.answer.fail(StaleIdentity(f"{item.id} of station {item.station!r} dropped: {why}"))
