"""The success buffer: coarse embeddings of the recent successes, kept where they are searched.

Whole trajectories come and go by episode id; the padded buffer grows by doubling, so that only a few shapes are ever
compiled. Shape letters: C slots, N padded coarse frames, D embedding, M query frames.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.fert.ring_storage import DeviceStorage, HostStorage, Storage

FIRST_FRAMES = 64
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Match:
    """How one stored success aligns with a query: mean distance and the coarse interval [left, right)."""

    episode_id: str
    num_frames: int
    cost: float
    left: int
    right: int


@dataclasses.dataclass(frozen=True)
class _Entry:
    slot: int
    coarse_frames: int
    num_frames: int


class SuccessRing:
    """A rolling window of embedded successes.

    window_frames: raw frames to hold; the oldest whole trajectories leave once this is exceeded (one always stays).
    dtype: float32 or bfloat16, of the stored embeddings. mesh, axis: spread the slots over this mesh axis.
    on_host: keep it in host memory. It also moves there by itself, with a warning, when the accelerator is full.
    slots, frames: room to reserve at once, so that a large ring need not be copied when it grows.
    """

    def __init__(
        self,
        dim: int,
        window_frames: int,
        dtype: Any = jnp.float32,
        mesh: Mesh | None = None,
        axis: str = "data",
        on_host: bool = False,
        slots: int = 8,
        frames: int = FIRST_FRAMES,
    ):
        self.dim = dim
        self.window_frames = window_frames
        self._dtype = jnp.dtype(dtype)
        self._entries: dict[str, _Entry] = {}
        self._free: list[int] = []
        slots = _rounded_up(slots, 1 if mesh is None else mesh.shape[axis])
        self._storage = self._allocate(slots, frames, mesh, axis, on_host)
        self._lengths = np.zeros(slots, np.int32)
        self._free = list(range(slots))[::-1]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._entries

    @property
    def episode_ids(self) -> list[str]:
        """Oldest first."""
        return list(self._entries)

    @property
    def total_frames(self) -> int:
        """Raw frames of all trajectories in the window."""
        return sum(entry.num_frames for entry in self._entries.values())

    @property
    def on_host(self) -> bool:
        return isinstance(self._storage, HostStorage)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole padded buffer."""
        return int(np.prod(self._storage.shape)) * self._dtype.itemsize

    def add(self, episode_id: str, embeddings: np.ndarray, num_frames: int) -> list[str]:
        """Store coarse embeddings [n, D] of an episode of `num_frames` raw frames; returns the ids it pushed out.

        An id that is present already is left as it is: delivery is at least once. Raises ValueError on a wrong shape.
        """
        if episode_id in self._entries:
            return []
        self._check(episode_id, embeddings)
        self._make_room(len(embeddings))
        slot = self._free.pop()
        self._storage.write(slot, np.asarray(embeddings))
        self._lengths[slot] = len(embeddings)
        self._entries[episode_id] = _Entry(slot, len(embeddings), num_frames)
        return self._evict_old()

    def evict(self, episode_id: str) -> None:
        """Forget a trajectory; an unknown id is ignored, for the window may have passed it."""
        entry = self._entries.pop(episode_id, None)
        if entry is not None:
            self._lengths[entry.slot] = 0
            self._free.append(entry.slot)

    def embeddings(self, episode_id: str) -> np.ndarray:
        """The stored (rounded) embeddings [n, D]. Raises KeyError for an unknown id."""
        entry = self._entries[episode_id]
        return self._storage.read(entry.slot)[: entry.coarse_frames]

    def coarse_frames(self, episode_id: str) -> int:
        return self._entries[episode_id].coarse_frames

    def num_frames(self, episode_id: str) -> int:
        return self._entries[episode_id].num_frames

    def align(self, query: np.ndarray, count: int | None = None) -> list[Match]:
        """Align a query [M, D] (its first `count` rows) with every eligible trajectory, oldest first."""
        count = len(query) if count is None else count
        cost, left, right = self._storage.align(np.asarray(query, np.float32), count, self._lengths)
        matches = [
            Match(name, e.num_frames, float(cost[e.slot]), int(left[e.slot]), int(right[e.slot]))
            for name, e in self._entries.items()
        ]
        return [match for match in matches if np.isfinite(match.cost)]

    def _check(self, episode_id: str, embeddings: np.ndarray) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dim or not len(embeddings):
            raise ValueError(f"episode {episode_id}: embeddings {embeddings.shape}, expected [n >= 1, {self.dim}]")
        if not np.isfinite(embeddings).all():
            raise ValueError(f"episode {episode_id}: its embeddings are not finite; check its state and images")

    def _evict_old(self) -> list[str]:
        gone = []
        while self.total_frames > self.window_frames and len(self._entries) > 1:
            gone.append(next(iter(self._entries)))
            self.evict(gone[-1])
        return gone

    def _make_room(self, coarse_frames: int) -> None:
        """Double the slots or the frames until one more trajectory of `coarse_frames` fits."""
        slots, frames, _ = self._storage.shape
        new_slots = slots if self._free else 2 * slots
        while frames < coarse_frames:
            frames *= 2
        if (new_slots, frames) != self._storage.shape[:2]:
            self._grow(new_slots, frames)
            self._free.extend(range(new_slots - 1, slots - 1, -1))
            self._lengths = np.concatenate([self._lengths, np.zeros(new_slots - slots, np.int32)])

    def _grow(self, slots: int, frames: int) -> None:
        try:
            self._storage.grow(slots, frames)
        except jax.errors.JaxRuntimeError as error:
            _only_out_of_memory(error)
            self._storage = self._moved_to_host(slots, frames)

    def _allocate(self, slots: int, frames: int, mesh: Mesh | None, axis: str, on_host: bool) -> Storage:
        if on_host:
            return HostStorage(slots, frames, self.dim, self._dtype)
        try:
            return DeviceStorage(slots, frames, self.dim, self._dtype, mesh, axis)
        except jax.errors.JaxRuntimeError as error:
            _only_out_of_memory(error)
            self._warn(slots, frames)
            return HostStorage(slots, frames, self.dim, self._dtype)

    def _moved_to_host(self, slots: int, frames: int) -> HostStorage:
        self._warn(slots, frames)
        host = HostStorage(slots, frames, self.dim, self._dtype)
        for entry in self._entries.values():
            host.write(entry.slot, self._storage.read(entry.slot)[: entry.coarse_frames])
        return host

    def _warn(self, slots: int, frames: int) -> None:
        size = slots * frames * self.dim * self._dtype.itemsize
        log.warning(
            "success ring: %.2f GB do not fit the accelerator; kept in host memory, where retrieval is slower. "
            "Use bfloat16 embeddings, a smaller window_frames or more devices.",
            size / 1e9,
        )


def _only_out_of_memory(error: Exception) -> None:
    """Raise `error` again unless it says that the accelerator's memory is full."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise error


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
