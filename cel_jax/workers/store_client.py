"""The learner's side of a store that runs in another process. Shapes as in `cel_jax.replay`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cel_jax.bus.arrays import Buffer, unpack_arrays
from cel_jax.bus.client import Client
from cel_jax.bus.errors import DeadlineExceeded, PeerLost
from cel_jax.bus.message import Reply
from cel_jax.replay.chunks import ChunkBatch
from cel_jax.replay.notices import ExperienceNotice

DEADLINE_S = 300.0  # a store that lost its process reads its window back from disk


class RemoteStore:
    """`cel_jax.fert.interfaces.Store` over the bus. Raises BusError when the store is away past the deadline."""

    def __init__(self, client: Client, deadline_s: float = DEADLINE_S) -> None:
        self._client, self._deadline_s = client, deadline_s

    def _call(self, op: str, header: Mapping[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> Reply:
        """Asks until the deadline: every operation may be asked twice, and a store that dies comes back."""
        ends_s = time.monotonic() + self._deadline_s
        while (left_s := ends_s - time.monotonic()) > 0:
            try:
                return self._client.call(op, header, buffers, left_s)
            except PeerLost:
                continue
        raise DeadlineExceeded(f"{op}: {self._client.expected_station} did not come back in {self._deadline_s:g} s")

    def reset_learner(self, session: str) -> list[str]:
        """Begins a learner's session; returns the window's successes, oldest first."""
        reply = self._call("reset_learner", {"session": session})
        return [str(name) for name in reply.header["window"]]

    def next_experience(self, max_items: int) -> list[ExperienceNotice]:
        reply = self._call("next_experience", {"max_items": max_items})
        tree = unpack_arrays(reply.header["arrays"], reply.buffers)
        return [_notice(head, tree[str(index)]) for index, head in enumerate(reply.header["notices"])]

    def embedded(self, episode: str) -> None:
        self._call("embedded", {"episode": episode})

    def apply_event(self, failure: str, intervals: list[tuple[str, int, int]]) -> bool:
        return self._apply("apply_event", failure, intervals)

    def apply_peer_event(self, failure: str, intervals: list[tuple[str, int, int]]) -> bool:
        """For a failure that another store holds."""
        return self._apply("apply_peer_event", failure, intervals)

    def _apply(self, op: str, failure: str, intervals: list[tuple[str, int, int]]) -> bool:
        header = {"failure": failure, "intervals": [[e, int(left), int(right)] for e, left, right in intervals]}
        return bool(self._call(op, header).header["applied"])

    def quarantine(self, episode: str, reason: str) -> None:
        self._call("quarantine", {"episode": episode, "reason": reason})

    def sample(self, n: int, seed: int) -> ChunkBatch | None:
        reply = self._call("sample", {"n": n, "seed": seed})
        if reply.header["empty"]:
            return None
        arrays = unpack_arrays(reply.header["arrays"], reply.buffers)
        keys = tuple((str(episode), int(start)) for episode, start in reply.header["keys"])
        images = {camera: [bytes(jpeg) for jpeg in jpegs] for camera, jpegs in arrays.get("images", {}).items()}
        return ChunkBatch(
            keys, arrays["state"], arrays["actions"], np.asarray(arrays["action_mask"], bool), arrays.get("objects"),
            images, int(reply.header["version"]), arrays["probabilities"],
        )  # fmt: skip

    def counters(self) -> dict[str, int]:
        return dict(self._call("counters").header["counters"])

    def snapshot(self) -> bytes:
        """Priorities, counters and manifest, for the training checkpoint."""
        return bytes(self._call("snapshot").buffers[0])

    def restore(self, snapshot: bytes) -> None:
        """Raises RemoteError where the store is not the checkpoint's."""
        self._call("restore", {}, [snapshot])


def _notice(head: dict[str, Any], arrays: dict[str, Any]) -> ExperienceNotice:
    images = {camera: tuple(bytes(jpeg) for jpeg in jpegs) for camera, jpegs in arrays.get("images", {}).items()}
    return ExperienceNotice(
        **head, steps=arrays["steps"], state=arrays["state"], objects=arrays.get("objects"), images=images
    )
