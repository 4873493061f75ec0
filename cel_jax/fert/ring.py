"""The success buffer: coarse embeddings of the recent successes, kept where they are searched.

Whole trajectories come and go by episode id, each a contiguous run of rows in a flat buffer that grows by doubling, so
that only a few shapes are ever compiled.
Shape letters: S shards, R rows of a shard, D embedding, Q queries, M query frames, C trajectories of a shard.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.fert.embedding import BadEmbeddings
from cel_jax.fert.ring_storage import DeviceStorage, HostStorage, Storage, power_of_two
from cel_jax.fert.sdtw import Alignment, Layout

FIRST_ROWS = 512
LEAST_TRAJECTORIES = 8  # columns of the first layout
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
    shard: int
    offset: int
    coarse_frames: int
    num_frames: int


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What a search needs of the entries. names: ids in rising order. at: (shard, column) of each, int64 [2, n]."""

    layout: Layout
    longest: int
    names: tuple[str, ...]
    at: np.ndarray


class SuccessRing:
    """A rolling window of embedded successes.

    window_frames: raw frames to hold; the oldest whole trajectories leave once this is exceeded (one always stays).
    dtype: float32 or bfloat16, of the stored embeddings. mesh, axis: spread the trajectories over this mesh axis.
    on_host: keep it in host memory. It also moves there by itself, with a warning, when the accelerator is full.
    rows: coarse frames to reserve at once on each device, so that a large ring need not be copied when it grows. Whole
        trajectories need contiguous rows: a tenth more than the window holds is enough.
    """

    def __init__(
        self,
        dim: int,
        window_frames: int,
        dtype: Any = jnp.float32,
        mesh: Mesh | None = None,
        axis: str = "data",
        on_host: bool = False,
        rows: int = FIRST_ROWS,
    ):
        self.dim = dim
        self.window_frames = window_frames
        self._dtype = jnp.dtype(dtype)
        self._entries: dict[str, _Entry] = {}
        self._total_frames = 0
        self._plan: _Plan | None = None
        self._columns, self._longest = LEAST_TRAJECTORIES, 1  # sizes of layouts only grow: nothing compiles twice
        self._storage = self._allocate(rows, mesh, axis, on_host)

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
        return self._total_frames

    @property
    def on_host(self) -> bool:
        return isinstance(self._storage, HostStorage)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer, rows in use or not."""
        return int(np.prod(self._storage.shape)) * self._dtype.itemsize

    def add(self, episode_id: str, embeddings: np.ndarray, num_frames: int) -> list[str]:
        """Store coarse embeddings [n, D] of an episode of `num_frames` raw frames; returns the ids it pushed out.

        An id that is present already is left as it is: delivery is at least once. Raises BadEmbeddings, and changes
        nothing, for a wrong shape or numbers that are not finite.
        """
        if episode_id in self._entries:
            return []
        self.check(f"episode {episode_id}", np.asarray(embeddings))
        gone = self._evict_for(num_frames)
        shard, offset = self._place(len(embeddings))
        self._storage.write(shard, offset, np.asarray(embeddings))
        self._entries[episode_id] = _Entry(shard, offset, len(embeddings), num_frames)
        self._total_frames += num_frames
        self._plan = None
        return gone

    def evict(self, episode_id: str) -> None:
        """Forget a trajectory; an unknown id is ignored, for the window may have passed it."""
        entry = self._entries.pop(episode_id, None)
        if entry is not None:
            self._total_frames -= entry.num_frames
            self._plan = None

    def embeddings(self, episode_id: str) -> np.ndarray:
        """The stored (rounded) embeddings [n, D]. Raises KeyError for an unknown id."""
        entry = self._entries[episode_id]
        return self._storage.read(entry.shard, entry.offset, entry.coarse_frames)

    def coarse_frames(self, episode_id: str) -> int:
        return self._entries[episode_id].coarse_frames

    def num_frames(self, episode_id: str) -> int:
        return self._entries[episode_id].num_frames

    def align(self, query: np.ndarray, count: int | None = None) -> list[Match]:
        """Align a query [M, D] (its first `count` rows) with every eligible trajectory, oldest first."""
        if not self._entries:
            return []
        plan = self._planned()
        found = self._search(query[None], [len(query) if count is None else count], plan)
        numbers = {name: number for number, name in enumerate(plan.names)}
        eligible = [numbers[name] for name in self._entries if np.isfinite(found.cost[0, numbers[name]])]
        return [self._match(plan, found, 0, number) for number in eligible]

    def nearest(self, queries: np.ndarray, counts: list[int], k: int) -> list[list[Match]]:
        """For each query of [Q, M, D] (its first counts[q] rows) the k cheapest eligible trajectories, best first.

        One pass over the buffer for all queries. Ties go to the smaller id.
        """
        if not self._entries:
            return [[] for _ in counts]
        plan = self._planned()
        found = self._search(queries, counts, plan)
        order = np.argsort(found.cost, axis=1, kind="stable")[:, :k]
        return [
            [self._match(plan, found, query, n) for n in row if np.isfinite(found.cost[query, n])]
            for query, row in enumerate(order)
        ]

    def _search(self, queries: np.ndarray, counts: list[int], plan: _Plan) -> Alignment:
        """[Q, n] each, in the order of `plan.names`. Queries are padded to a power of two: few shapes are compiled."""
        for query, count in zip(queries, counts, strict=True):
            self.check("query", query[:count])
        padded = np.zeros((power_of_two(len(queries)), *queries.shape[1:]), np.float32)
        padded[: len(queries)] = queries
        used = np.ones(len(padded), np.int32)
        used[: len(counts)] = counts
        found = self._storage.align(padded, used, plan.layout, plan.longest)
        return Alignment(*(part[: len(queries), plan.at[0], plan.at[1]] for part in found))

    def _match(self, plan: _Plan, found: Alignment, query: int, number: int) -> Match:
        name = plan.names[number]
        cost, left, right = (part[query, number] for part in found)
        return Match(name, self._entries[name].num_frames, float(cost), int(left), int(right))

    def _planned(self) -> _Plan:
        if self._plan is None:
            of_shard = _by_shard(self._entries, self._storage.shape[0])
            self._columns = max(self._columns, *(power_of_two(max(1, len(names))) for names in of_shard))
            coarse_frames = max(entry.coarse_frames for entry in self._entries.values())
            self._longest = max(self._longest, power_of_two(coarse_frames))
            self._plan = _plan(self._entries, of_shard, self._columns, self._longest)
        return self._plan

    def check(self, who: str, embeddings: np.ndarray) -> None:
        """Raises BadEmbeddings where [n, D] could not be stored or searched; `who` begins its message."""
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dim or not len(embeddings):
            raise BadEmbeddings(
                f"{who}: embeddings {embeddings.shape}, expected [n >= 1, {self.dim}]; is it of another robot type?"
            )
        bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        if len(bad):
            raise BadEmbeddings(
                f"{who}: its embeddings are not finite at coarse frame {bad[0]} ({len(bad)} in all); "
                "check its state and images"
            )

    def _evict_for(self, num_frames: int) -> list[str]:
        """Let the oldest go until `num_frames` more fit into the window."""
        gone = []
        while self._entries and self._total_frames + num_frames > self.window_frames:
            gone.append(next(iter(self._entries)))
            self.evict(gone[-1])
        return gone

    def _place(self, coarse_frames: int) -> tuple[int, int]:
        """(shard, offset) of free rows, on the emptiest shard that has them; else the buffer doubles until it has."""
        shards, rows, _ = self._storage.shape
        taken: list[list[_Entry]] = [[] for _ in range(shards)]
        for entry in self._entries.values():
            taken[entry.shard].append(entry)
        for shard in sorted(range(shards), key=lambda s: sum(entry.coarse_frames for entry in taken[s])):
            offset = _first_gap(taken[shard], coarse_frames)
            if offset + coarse_frames <= rows:
                return shard, offset
        self._grow(power_of_two(-(-(rows + coarse_frames) // rows)) * rows)
        return self._place(coarse_frames)

    def _grow(self, rows: int) -> None:
        try:
            self._storage.grow(rows)
        except jax.errors.JaxRuntimeError as error:
            _only_out_of_memory(error)
            self._move_to_host(rows)

    def _allocate(self, rows: int, mesh: Mesh | None, axis: str, on_host: bool) -> Storage:
        if on_host:
            return HostStorage(rows, self.dim, self._dtype)
        try:
            return DeviceStorage(rows, self.dim, self._dtype, mesh, axis)
        except jax.errors.JaxRuntimeError as error:
            _only_out_of_memory(error)
            shards = 1 if mesh is None else mesh.shape[axis]
            self._warn(shards * rows)
            return HostStorage(shards * rows, self.dim, self._dtype)

    def _move_to_host(self, rows: int) -> None:
        """All shards into one host buffer, one trajectory after another."""
        total = self._storage.shape[0] * rows
        self._warn(total)
        host, offset, moved = HostStorage(total, self.dim, self._dtype), 0, {}
        for name, entry in self._entries.items():
            host.write(0, offset, self._storage.read(entry.shard, entry.offset, entry.coarse_frames))
            moved[name] = dataclasses.replace(entry, shard=0, offset=offset)
            offset += entry.coarse_frames
        self._storage, self._entries, self._plan = host, moved, None

    def _warn(self, rows: int) -> None:
        log.warning(
            "success ring: %.2f GB do not fit the accelerator; kept in host memory, where retrieval is slower. "
            "Use bfloat16 embeddings, a smaller window_frames or more devices.",
            rows * self.dim * self._dtype.itemsize / 1e9,
        )


def _first_gap(entries: list[_Entry], wanted: int) -> int:
    """The lowest offset with `wanted` free rows; the end of the last entry where no gap is long enough."""
    free = 0
    for entry in sorted(entries, key=lambda one: one.offset):
        if entry.offset - free >= wanted:
            return free
        free = entry.offset + entry.coarse_frames
    return free


def _by_shard(entries: dict[str, _Entry], shards: int) -> list[list[str]]:
    """The ids that each shard holds."""
    of_shard: list[list[str]] = [[] for _ in range(shards)]
    for name, entry in entries.items():
        of_shard[entry.shard].append(name)
    return of_shard


def _plan(entries: dict[str, _Entry], of_shard: list[list[str]], columns: int, longest: int) -> _Plan:
    """Layouts [S, columns]."""
    offsets, lengths = np.zeros((2, len(of_shard), columns), np.int32)
    at = {}
    for shard, held in enumerate(of_shard):
        for column, name in enumerate(held):
            at[name] = (shard, column)
            offsets[shard, column], lengths[shard, column] = entries[name].offset, entries[name].coarse_frames
    names = tuple(sorted(entries))
    return _Plan(Layout(offsets, lengths), longest, names, np.array([at[name] for name in names]).T)


def _only_out_of_memory(error: Exception) -> None:
    """Raise `error` again unless it says that the accelerator's memory is full."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise error
