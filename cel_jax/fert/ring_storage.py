"""Where the ring keeps its embeddings: on the accelerator (over a mesh axis), or in host memory.

One flat buffer per shard, without padding between trajectories. Rows that no layout names may hold anything: a path
cannot reach from them into a trajectory, for `places` tells where each begins.
Shape letters: S shards, R rows of a shard, D embedding, Q queries, M query frames, C trajectories of a shard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cel_jax.fert import sdtw
from cel_jax.fert.sdtw import Alignment, Layout

HOST_BLOCK_ROWS = 4096  # rows of the host buffer that travel to the accelerator at a time


class Storage(Protocol):
    """A buffer [S, R, D] that can be written by rows, enlarged and searched."""

    @property
    def shape(self) -> tuple[int, int, int]: ...

    def grow(self, rows: int) -> None: ...

    def write(self, shard: int, offset: int, trajectory: np.ndarray) -> None: ...

    def read(self, shard: int, offset: int, length: int) -> np.ndarray: ...

    def align(self, queries: np.ndarray, counts: np.ndarray, layout: Layout, longest: int) -> Alignment:
        """queries: float32 [Q, M, D]. layout: int32 [S, C] each. Returns numpy arrays [Q, S, C]."""
        ...


class DeviceStorage:
    """The buffer on the accelerator. With a mesh, one shard for each device along `axis`."""

    def __init__(self, rows: int, dim: int, dtype: Any, mesh: Mesh | None = None, axis: str = "data"):
        shards = 1 if mesh is None else mesh.shape[axis]
        self._sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(axis))
        self._write, self._align = _writer(mesh, axis), _aligner(mesh, axis)
        self._frames = jnp.zeros((shards, rows, dim), dtype, device=self._sharding)
        self._norms = jnp.zeros((shards, rows), jnp.float32, device=self._sharding)
        self._places = jnp.zeros((shards, rows), jnp.int32, device=self._sharding)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._frames.shape  # type: ignore[return-value]

    def grow(self, rows: int) -> None:
        """Enlarge every shard to `rows`, keeping the content."""
        more = ((0, 0), (0, rows - self.shape[1]))
        pad = jax.jit(jnp.pad, static_argnums=1, out_shardings=self._sharding)
        larger = pad(self._frames, (*more, (0, 0)))
        larger.block_until_ready()  # an allocation that fails must fail here, before the old buffer goes
        self._frames, self._norms, self._places = larger, pad(self._norms, more), pad(self._places, more)

    def write(self, shard: int, offset: int, trajectory: np.ndarray) -> None:
        """Put [n, D] into the rows from `offset` on, in place. Padded to a power of two: few shapes are compiled."""
        rows = np.zeros((power_of_two(len(trajectory)), self.shape[2]), trajectory.dtype)
        rows[: len(trajectory)] = trajectory
        where = np.array([shard, offset, len(trajectory)], np.int32)
        self._frames, self._norms, self._places = self._write(self._frames, self._norms, self._places, rows, where)

    def read(self, shard: int, offset: int, length: int) -> np.ndarray:
        return np.asarray(self._frames[shard, offset : offset + length])

    def align(self, queries: np.ndarray, counts: np.ndarray, layout: Layout, longest: int) -> Alignment:
        found = self._align(queries, counts, self._frames, self._norms, self._places, layout, longest)
        return Alignment(*map(np.asarray, found))


@functools.cache  # rings of one mesh share what is compiled
def _writer(mesh: Mesh | None, axis: str) -> Callable[..., Any]:
    """A jitted in-place write. Over a mesh each device writes only rows of its own: no collective, no copy."""
    if mesh is None:
        return jax.jit(functools.partial(_write_rows, 0), donate_argnums=(0, 1, 2))

    def local(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        return _write_rows(jax.lax.axis_index(axis), *arguments)

    part, whole = PartitionSpec(axis), PartitionSpec()
    spread = jax.shard_map(local, mesh=mesh, in_specs=(part, part, part, whole, whole), out_specs=part)
    return jax.jit(spread, donate_argnums=(0, 1, 2))


def _write_rows(
    here: jax.Array | int, frames: jax.Array, norms: jax.Array, places: jax.Array, rows: jax.Array, where: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Write rows [n, D] into this device's shard [1, R, D]; what belongs to another shard or is padding is dropped."""
    shard, offset, length = where
    number = jnp.arange(len(rows))
    index = jnp.where((shard == here) & (number < length), offset + number, frames.shape[1])
    rows = rows.astype(frames.dtype)
    put = [(frames, rows), (norms, sdtw.squared_lengths(rows)), (places, number.astype(jnp.int32))]
    written = [buffer.at[0, index].set(values, mode="drop") for buffer, values in put]
    return written[0], written[1], written[2]


@functools.cache
def _aligner(mesh: Mesh | None, axis: str) -> Callable[..., Alignment]:
    """Each device aligns the queries with its own trajectories: no collective. The last argument is static."""
    if mesh is None:
        return jax.jit(_align_shard, static_argnums=6)

    def spread(*arguments: Any) -> Alignment:
        local = functools.partial(_align_shard, longest=arguments[-1])
        part, whole, out = PartitionSpec(axis), PartitionSpec(), PartitionSpec(None, axis)
        specs = (whole, whole, part, part, part, part)
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out)(*arguments[:-1])

    return jax.jit(spread, static_argnums=6)


def _align_shard(
    queries: jax.Array,
    counts: jax.Array,
    frames: jax.Array,
    norms: jax.Array,
    places: jax.Array,
    layout: Layout,
    longest: int,
) -> Alignment:
    """`sdtw.align` on one shard, whose leading axis has length one here and in the result [Q, 1, C]."""
    own = Layout(layout.offsets[0], layout.lengths[0])
    found = sdtw.align(queries, counts, frames[0], norms[0], places[0], own, longest)
    return Alignment(*(part[:, None] for part in found))


class HostStorage:
    """The buffer in host memory, one shard, searched block by block: slower, for what does not fit the accelerator."""

    def __init__(self, rows: int, dim: int, dtype: Any):
        self._frames = np.zeros((1, rows, dim), jnp.dtype(dtype))
        self._norms = np.zeros(rows, np.float32)
        self._places = np.zeros(rows, np.int32)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._frames.shape  # type: ignore[return-value]

    def grow(self, rows: int) -> None:
        more = rows - self.shape[1]
        self._frames = np.concatenate([self._frames, np.zeros((1, more, self.shape[2]), self._frames.dtype)], axis=1)
        self._norms, self._places = np.pad(self._norms, (0, more)), np.pad(self._places, (0, more))

    def write(self, shard: int, offset: int, trajectory: np.ndarray) -> None:
        rows = slice(offset, offset + len(trajectory))
        self._frames[shard, rows] = trajectory.astype(self._frames.dtype)
        self._norms[rows] = np.asarray(sdtw.squared_lengths(jnp.asarray(self._frames[shard, rows])))
        self._places[rows] = np.arange(len(trajectory))

    def read(self, shard: int, offset: int, length: int) -> np.ndarray:
        return self._frames[shard, offset : offset + length].copy()

    def align(self, queries: np.ndarray, counts: np.ndarray, layout: Layout, longest: int) -> Alignment:
        starts = range(0, self.shape[1], HOST_BLOCK_ROWS)
        table = jnp.concatenate([self._distances(queries, start) for start in starts], axis=-1)
        own = Layout(layout.offsets[0], layout.lengths[0])
        found = sdtw.align_table(table, counts, self._places, own, longest)
        return Alignment(*(np.asarray(part)[:, None] for part in found))

    def _distances(self, queries: np.ndarray, start: int) -> jax.Array:
        rows = slice(start, start + HOST_BLOCK_ROWS)
        return sdtw.distances(queries, self._frames[0, rows], self._norms[rows])


def power_of_two(number: int) -> int:
    """The least power of two that is at least `number` >= 1."""
    return 1 << (number - 1).bit_length()
