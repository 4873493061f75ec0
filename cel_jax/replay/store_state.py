"""What the store's events add up to. The running store and a restart go through the same `apply`.

Event kinds: `open` {horizon}, `success` {episode, sha256, num_frames, starts, w_init}, `failure` and `discard`
{episode, sha256, num_frames}, `evict` {episode, reason}, `retrieval` {failure, rho, intervals}, `shard` {name,
episodes}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from cel_jax.replay.event_log import Event
from cel_jax.replay.priorities import Interval, Priorities, WeightUpdate


@dataclasses.dataclass(frozen=True)
class Booked:
    """One episode that the store has taken. `number`: the event that took it."""

    episode: str
    kind: str
    sha256: str
    num_frames: int
    number: int


class StoreState:
    """Priorities, the window, and who was taken, retrieved, or put into a shard."""

    def __init__(self, horizon: int) -> None:
        self.priorities = Priorities(horizon)
        self.booked: dict[str, Booked] = {}
        self.retrieved: dict[str, int] = {}  # failure -> event number
        self.shard_of: dict[str, str] = {}
        self.evicted: dict[str, str] = {}  # episode -> reason
        self.weights_version = 0  # number of the last event that changed a weight or the window
        self.head = 0

    @classmethod
    def replay(cls, events: Iterable[Event], horizon: int, until: int | None = None) -> StoreState:
        """The state after event `until` (all of them where None)."""
        state = cls(horizon)
        for event in events:
            if until is not None and event.number > until:
                break
            state.apply(event)
        return state

    def apply(self, event: Event) -> list[WeightUpdate]:
        """Takes the next event in; returns the stored weights that it changed."""
        if event.number != self.head + 1:
            raise ValueError(f"store: event {event.number} came, expected {self.head + 1}")
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is None:
            raise ValueError(f"store: event {event.number} has unknown kind {event.kind!r}; from a newer program?")
        updates: list[WeightUpdate] = handler(event, event.data) or []
        self.head = event.number
        return updates

    def _on_open(self, event: Event, data: dict[str, Any]) -> None:
        if data["horizon"] != self.priorities.horizon:
            raise ValueError(
                f"store: its folder was filled with action_horizon {data['horizon']}, now "
                f"{self.priorities.horizon}; keep the old value or use a new run"
            )

    def _on_success(self, event: Event, data: dict[str, Any]) -> None:
        self._book(event, data)
        starts = unpack_starts(data["starts"])
        if len(starts):
            self.priorities.add_episode(data["episode"], starts, data["num_frames"], data["w_init"])
            self.weights_version = event.number

    def _on_failure(self, event: Event, data: dict[str, Any]) -> None:
        self._book(event, data)

    def _on_discard(self, event: Event, data: dict[str, Any]) -> None:
        self._book(event, data)

    def _book(self, event: Event, data: dict[str, Any]) -> None:
        key = data["episode"]
        self.booked[key] = Booked(key, event.kind, data["sha256"], data["num_frames"], event.number)

    def _on_evict(self, event: Event, data: dict[str, Any]) -> None:
        self.priorities.remove_episode(data["episode"])
        self.evicted[data["episode"]] = data["reason"]
        self.weights_version = event.number

    def _on_retrieval(self, event: Event, data: dict[str, Any]) -> list[WeightUpdate]:
        self.retrieved[data["failure"]] = event.number
        intervals = [Interval(*interval) for interval in data["intervals"]]
        updates = self.priorities.apply(event.number, data["failure"], data["rho"], intervals)
        self.weights_version = event.number if updates else self.weights_version
        return updates

    def _on_shard(self, event: Event, data: dict[str, Any]) -> None:
        self.shard_of.update(dict.fromkeys(data["episodes"], data["name"]))

    def unsharded(self) -> list[str]:
        """Successes that no shard holds yet, in order of arrival."""
        return [key for key, booked in self.booked.items() if booked.kind == "success" and key not in self.shard_of]

    def counters(self) -> dict[str, int]:
        kinds = [booked.kind for booked in self.booked.values()]
        return {
            "successes": kinds.count("success"),
            "failures": kinds.count("failure"),
            "discards": kinds.count("discard"),
            "retrievals": len(self.retrieved),
            "evicted": len(self.evicted),
            "shards": len(set(self.shard_of.values())),
            "events": self.head,
        }


def pack_starts(starts: np.ndarray) -> dict[str, Any]:
    """int32 [C] as JSON: a range where they are evenly spaced."""
    steps = np.unique(np.diff(starts))
    if len(starts) and len(steps) <= 1:
        step = int(steps[0]) if len(steps) else 1
        return {"range": [int(starts[0]), int(starts[-1]) + 1, step]}
    return {"list": starts.tolist()}


def unpack_starts(packed: dict[str, Any]) -> np.ndarray:
    """The inverse of `pack_starts`."""
    return np.arange(*packed["range"], dtype=np.int32) if "range" in packed else np.array(packed["list"], np.int32)
