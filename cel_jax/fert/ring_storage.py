"""Where the ring keeps its embeddings: on the accelerator (over a mesh axis), or in host memory.

Shape letters: C slots, N padded coarse frames, D embedding, M query frames.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cel_jax.fert import sdtw

HOST_BLOCK = 64  # slots of the host buffer that travel to the accelerator at a time
Alignment = tuple[np.ndarray, np.ndarray, np.ndarray]


class Storage(Protocol):
    """A padded buffer [C, N, D] that can be written by slot, enlarged and searched."""

    @property
    def shape(self) -> tuple[int, int, int]: ...

    def grow(self, slots: int, frames: int) -> None: ...

    def write(self, slot: int, trajectory: np.ndarray) -> None: ...

    def read(self, slot: int) -> np.ndarray: ...

    def align(self, query: np.ndarray, count: int, lengths: np.ndarray) -> Alignment: ...


class DeviceStorage:
    """The buffer on the accelerator. With a mesh, slots are spread over `axis`; slots divide by its size."""

    def __init__(self, slots: int, frames: int, dim: int, dtype: Any, mesh: Mesh | None = None, axis: str = "data"):
        self._axis = axis
        self._mesh = mesh
        self._sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(axis))
        self._write = _writer(mesh, axis)
        self._frames = self._zeros((slots, frames, dim), dtype)
        self._norms = self._zeros((slots, frames), jnp.float32)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._frames.shape  # type: ignore[return-value]

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jnp.zeros(shape, dtype, device=self._sharding)

    def grow(self, slots: int, frames: int) -> None:
        """Enlarge to `slots` x `frames`, keeping the content."""
        by_slots, by_frames = slots - self.shape[0], frames - self.shape[1]
        pad = jax.jit(jnp.pad, static_argnums=1, out_shardings=self._sharding)
        larger = pad(self._frames, ((0, by_slots), (0, by_frames), (0, 0)))
        larger.block_until_ready()  # an allocation that fails must fail here, before the old buffer goes
        self._norms = pad(self._norms, ((0, by_slots), (0, by_frames)))
        self._frames = larger

    def write(self, slot: int, trajectory: np.ndarray) -> None:
        """Put [<= N, D] into `slot`, in place."""
        padded = np.zeros(self.shape[1:], trajectory.dtype)
        padded[: len(trajectory)] = trajectory
        self._frames, self._norms = self._write(self._frames, self._norms, padded, jnp.int32(slot))

    def read(self, slot: int) -> np.ndarray:
        return np.asarray(self._frames[slot])

    def align(self, query: np.ndarray, count: int, lengths: np.ndarray) -> Alignment:
        out = sdtw.align(query, self._frames, lengths, count, self._norms)
        cost, left, right = map(np.asarray, out)
        return cost, left, right


def _writer(mesh: Mesh | None, axis: str) -> Any:
    """A jitted in-place write. Over a mesh each device writes only a slot of its own: no collective, no copy."""
    if mesh is None:
        return jax.jit(_write_slot, donate_argnums=(0, 1))

    def local(frames: jax.Array, norms: jax.Array, row: jax.Array, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
        here = slot - jax.lax.axis_index(axis) * frames.shape[0]
        outside = (here < 0) | (here >= frames.shape[0])
        return _write_slot(frames, norms, row, jnp.where(outside, frames.shape[0], here))

    part, whole = PartitionSpec(axis), PartitionSpec()
    spread = jax.shard_map(local, mesh=mesh, in_specs=(part, part, whole, whole), out_specs=(part, part))
    return jax.jit(spread, donate_argnums=(0, 1))


def _write_slot(frames: jax.Array, norms: jax.Array, row: jax.Array, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Write row [N, D] and its norms; a slot outside the buffer is dropped."""
    row = row.astype(frames.dtype)
    return frames.at[slot].set(row, mode="drop"), norms.at[slot].set(sdtw.squared_lengths(row), mode="drop")


class HostStorage:
    """The buffer in host memory, searched block by block: slower, for what does not fit the accelerator."""

    def __init__(self, slots: int, frames: int, dim: int, dtype: Any):
        self._frames = np.zeros((slots, frames, dim), jnp.dtype(dtype))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._frames.shape  # type: ignore[return-value]

    def grow(self, slots: int, frames: int) -> None:
        old = self._frames
        self._frames = np.zeros((slots, frames, old.shape[2]), old.dtype)
        self._frames[: old.shape[0], : old.shape[1]] = old

    def write(self, slot: int, trajectory: np.ndarray) -> None:
        self._frames[slot] = 0
        self._frames[slot, : len(trajectory)] = trajectory.astype(self._frames.dtype)

    def read(self, slot: int) -> np.ndarray:
        return self._frames[slot]

    def align(self, query: np.ndarray, count: int, lengths: np.ndarray) -> Alignment:
        search = functools.partial(self._align_block, query, count, lengths)
        blocks = [search(start) for start in range(0, len(lengths), HOST_BLOCK)]
        cost, left, right = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return cost, left, right

    def _align_block(self, query: np.ndarray, count: int, lengths: np.ndarray, start: int) -> Alignment:
        stop = start + HOST_BLOCK
        cost, left, right = map(np.asarray, sdtw.align(query, self._frames[start:stop], lengths[start:stop], count))
        return cost, left, right
