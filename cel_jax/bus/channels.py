"""Typed ends of the observation channel: the robot's and the inference worker's."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cel_jax.bus.arrays import Buffer, pack_arrays, unpack_arrays
from cel_jax.bus.client import Client
from cel_jax.bus.errors import DeadlineExceeded, PeerLost, WireError
from cel_jax.bus.failures import Counters
from cel_jax.bus.histogram import Histogram
from cel_jax.bus.message import Reply

OBSERVATIONS = "observations"
_MARGIN_S = 2.0  # a fetch that found nothing still has to travel back


@dataclasses.dataclass(frozen=True)
class StepId:
    """Which observation: whose, of which episode, at which step."""

    station: str
    worker: str
    episode: str
    step: int


@dataclasses.dataclass(frozen=True)
class ObservationRequest:
    """One observation as inference gets it. `arrays` as the robot packed them, read-only."""

    id: StepId
    task: str
    arrays: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ActionReply:
    """One action chunk and the policy version that made it."""

    id: StepId
    policy_version: int
    arrays: Mapping[str, Any]


class ObservationClient:
    """The robot's end. `infer` gives only an answer to the very observation it sent."""

    def __init__(self, client: Client, channel: str = OBSERVATIONS) -> None:
        self._client, self._channel, self.counters = client, channel, Counters()
        self.latency = Histogram()  # from the question to its own answer

    def infer(self, id: StepId, task: str, arrays: Mapping[str, Any], deadline_s: float) -> ActionReply:
        """Asks for actions. A reply that answers something else is counted and dropped, and the question asked again;
        so it is after a lost connection. Raises DeadlineExceeded, or RemoteError when the home refuses."""
        meta, buffers = pack_arrays(arrays)
        header = {**dataclasses.asdict(id), "channel": self._channel, "key": id.station, "task": task, "arrays": meta}
        start_s = time.monotonic()
        while (left_s := start_s + deadline_s - time.monotonic()) > 0.0:
            reply = self._ask(header, buffers, left_s)
            if reply is not None and _step_id(reply.header) == id:
                self.latency.add(time.monotonic() - start_s)
                return _unpack_action(id, reply)
            self.counters.add("mismatched_replies" if reply is not None else "asked_again")
        raise DeadlineExceeded(f"no action for {id} within {deadline_s} s from {self._client.endpoint}")

    def _ask(self, header: Mapping[str, Any], buffers: Sequence[Buffer], deadline_s: float) -> Reply | None:
        try:
            return self._client.call("request", header, buffers, deadline_s)
        except PeerLost:
            return None


class InferenceFeed:
    """The inference worker's end, over one or several homes. Each home holds one open fetch: that is its credit."""

    def __init__(self, clients: Sequence[Client], channel: str = OBSERVATIONS) -> None:
        self._clients, self._channel, self.counters = list(clients), channel, Counters()
        self._open: dict[int, concurrent.futures.Future[Reply]] = {}
        self._homes: dict[StepId, int] = {}  # of the batches handed out and not answered yet

    def fetch(self, target: int, timeout_s: float, wait_s: float) -> list[ObservationRequest]:
        """The next batch of one home: `target` items, fewer once the oldest waited `timeout_s`, empty after `wait_s`.
        A lost home is counted and asked again at the next fetch. Hand each batch to `answer` before the next fetch."""
        ends_s = time.monotonic() + wait_s
        while (left_s := ends_s - time.monotonic()) > 0.0:
            self._grant(target, timeout_s, left_s)
            done, _ = concurrent.futures.wait(
                self._open.values(), left_s + _MARGIN_S, concurrent.futures.FIRST_COMPLETED
            )
            for home in [home for home, future in self._open.items() if future in done]:
                batch = self._collect(home)
                if batch:
                    return batch
        return []

    def answer(self, replies: Sequence[ActionReply], deadline_s: float = 10.0) -> int:
        """Sends action chunks to the homes of their observations; returns how many were the first answer."""
        groups: dict[int, list[ActionReply]] = {}
        for reply in replies:
            if reply.id not in self._homes:
                raise ValueError(f"{reply.id} was not fetched here, or was answered before")
            groups.setdefault(self._homes.pop(reply.id), []).append(reply)
        return sum(self._answer_home(home, group, deadline_s) for home, group in groups.items())

    def _grant(self, target: int, timeout_s: float, wait_s: float) -> None:
        head = {"channel": self._channel, "target": target, "timeout_s": float(timeout_s), "wait_s": float(wait_s)}
        for home, client in enumerate(self._clients):
            if home not in self._open:
                self._open[home] = client.submit("fetch", head, (), wait_s + _MARGIN_S)

    def _collect(self, home: int) -> list[ObservationRequest]:
        future = self._open.pop(home)
        try:
            reply = future.result(0)
        except (PeerLost, DeadlineExceeded) as error:
            self.counters.add(f"fetch_{error.kind}")
            return []
        batch = _unpack_batch(reply)
        self._homes.update({request.id: home for request in batch})
        return batch

    def _answer_home(self, home: int, replies: Sequence[ActionReply], deadline_s: float) -> int:
        heads: list[dict[str, Any]] = []
        buffers: list[Buffer] = []
        for reply in replies:
            meta, own = pack_arrays(reply.arrays)
            more = {"policy_version": int(reply.policy_version), "arrays": meta, "buffers": len(own)}
            heads.append({**dataclasses.asdict(reply.id), **more})
            buffers.extend(own)
        answered = self._clients[home].call("answer", {"channel": self._channel, "items": heads}, buffers, deadline_s)
        return int(answered.header["first"])


def _unpack_action(id: StepId, reply: Reply) -> ActionReply:
    version = reply.header.get("policy_version")
    if type(version) is not int:
        raise WireError(f"reply to {id}: expected an integer policy_version, got {version!r}")
    return ActionReply(id, version, unpack_arrays(reply.header.get("arrays"), reply.buffers))


def _unpack_batch(reply: Reply) -> list[ObservationRequest]:
    batch, start = [], 0
    for item in reply.header["items"]:
        head, stop = item["header"], start + item["buffers"]
        arrays = unpack_arrays(head.get("arrays"), reply.buffers[start:stop])
        batch.append(ObservationRequest(_step_id(head), str(head.get("task", "")), arrays))
        start = stop
    return batch


def _step_id(head: Mapping[str, Any]) -> StepId:
    try:
        return StepId(head["station"], head["worker"], head["episode"], head["step"])
    except KeyError as error:
        raise WireError(f"expected station, worker, episode and step, {error} is missing") from error
