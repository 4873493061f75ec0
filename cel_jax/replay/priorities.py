"""Chunk weights: decay at every failure event, more weight where a retrieved interval lies (equation (10)).

    w_i <- rho w_i + |idx(A_i) n R| / |idx(A_i)|

Decay touches every chunk, so it is one float64 factor: true weight = stored * scale. An event writes only the chunks
that its intervals overlap; every hundred events or so the factor is multiplied in ("rescale"), long before it could
lose precision. One interval per episode and event, so that a chunk gains at most 1.
Shape letters: C chunks of one episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from cel_jax.replay.chunks import chunk_lengths

MIN_SCALE = 2.0**-20  # rho = 0.88 reaches it after 109 events


class Interval(NamedTuple):
    """Frames [left, right) of one success, retrieved by a failure."""

    episode: str
    left: int
    right: int


class WeightUpdate(NamedTuple):
    """New stored weights, float64, for the chunks of `episode` from index `first` on."""

    episode: str
    first: int
    weights: np.ndarray


class ChunkEvent(NamedTuple):
    """What one event did to one chunk. `weight`: its true weight afterwards."""

    number: int
    kind: str
    cause: str
    gain: float
    weight: float


@dataclasses.dataclass
class _Row:
    starts: np.ndarray  # int32 [C]
    lengths: np.ndarray  # int64 [C]
    stored: np.ndarray  # float64 [C]
    w_init: float
    inserted: int  # events applied before


class Priorities:
    """The weights of all chunks in the window. Pure bookkeeping: no files, no table."""

    def __init__(self, horizon: int, min_scale: float = MIN_SCALE) -> None:
        if horizon < 1 or not 0.0 < min_scale <= 1.0:
            raise ValueError(f"priorities: horizon >= 1 and 0 < min_scale <= 1 expected, got {horizon}, {min_scale}")
        self.horizon, self._min_scale = horizon, min_scale
        self.scale = 1.0
        self.rescales = 0
        self._rows: dict[str, _Row] = {}
        self._history: list[tuple[int, str, float, Mapping[str, tuple[int, int]]]] = []

    @property
    def episodes(self) -> tuple[str, ...]:
        """Ids in order of arrival."""
        return tuple(self._rows)

    @property
    def num_chunks(self) -> int:
        return sum(len(row.starts) for row in self._rows.values())

    def starts(self, episode: str) -> np.ndarray:
        """int32 [C]."""
        return self._row(episode).starts

    def stored(self, episode: str) -> np.ndarray:
        """float64 [C], what a table holds; multiply by `scale` for the true weight."""
        return self._row(episode).stored

    def weights(self, episode: str) -> np.ndarray:
        """float64 [C], true weights."""
        return self._row(episode).stored * self.scale

    def add_episode(self, episode: str, starts: np.ndarray, num_frames: int, w_init: float) -> np.ndarray:
        """Takes in the chunks of a success at weight `w_init`; returns their stored weights, float64 [C]."""
        if episode in self._rows:
            raise ValueError(f"priorities: episode {episode!r} is already in the window")
        stored = np.full(len(starts), w_init / self.scale, np.float64)
        lengths = chunk_lengths(starts, num_frames, self.horizon)
        self._rows[episode] = _Row(np.asarray(starts, np.int32), lengths, stored, w_init, len(self._history))
        return stored.copy()

    def remove_episode(self, episode: str) -> None:
        self._row(episode)
        del self._rows[episode]

    def apply(self, number: int, cause: str, rho: float, intervals: Iterable[Interval]) -> list[WeightUpdate]:
        """One failure event; returns the stored weights that changed. No match in the window: nothing changes."""
        found = self._match(cause, intervals)
        if not found:
            return []
        self._history.append((number, cause, rho, found))
        new_scale = self.scale * rho
        if new_scale < self._min_scale:
            return self._apply_rescaled(new_scale, found)
        self.scale = new_scale
        return [update for episode in found if (update := self._add_overlap(episode, *found[episode])) is not None]

    def _match(self, cause: str, intervals: Iterable[Interval]) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for episode, left, right in intervals:
            if not 0 <= left < right:
                raise ValueError(f"event of failure {cause!r}: interval [{left}, {right}) of {episode!r} is empty")
            if episode in found:
                raise ValueError(f"event of failure {cause!r}: two intervals in episode {episode!r}, expected one")
            if episode in self._rows:  # it may have left the window since the search
                found[episode] = (int(left), int(right))
        return found

    def _apply_rescaled(self, new_scale: float, found: Mapping[str, tuple[int, int]]) -> list[WeightUpdate]:
        for row in self._rows.values():
            row.stored *= new_scale
        self.scale = 1.0
        self.rescales += 1
        for episode, (left, right) in found.items():
            self._add_overlap(episode, left, right)
        return [WeightUpdate(episode, 0, row.stored.copy()) for episode, row in self._rows.items()]

    def _add_overlap(self, episode: str, left: int, right: int) -> WeightUpdate | None:
        row = self._rows[episode]
        first, last = _touched(row, left, right)
        if first == last:
            return None
        share = overlap_share(row.starts[first:last], row.lengths[first:last], left, right)
        row.stored[first:last] += share / self.scale
        return WeightUpdate(episode, first, row.stored[first:last].copy())

    def explain(self, episode: str, start: int) -> list[ChunkEvent]:
        """Everything that made the weight of one chunk, oldest first: its arrival, then every event since."""
        row = self._row(episode)
        index = int(np.searchsorted(row.starts, start))
        if index == len(row.starts) or row.starts[index] != start:
            raise KeyError(f"episode {episode!r} has no chunk from frame {start}")
        weight, events = row.w_init, [ChunkEvent(0, "insert", episode, row.w_init, row.w_init)]
        for number, cause, rho, found in self._history[row.inserted :]:
            gain = 0.0
            if episode in found:
                at = slice(index, index + 1)
                gain = float(overlap_share(row.starts[at], row.lengths[at], *found[episode])[0])
            weight = rho * weight + gain
            events.append(ChunkEvent(number, "retrieval", cause, gain, weight))
        return events

    def _row(self, episode: str) -> _Row:
        if episode not in self._rows:
            raise KeyError(f"episode {episode!r} is not in the window of {len(self._rows)} episodes")
        return self._rows[episode]


def overlap_share(starts: np.ndarray, lengths: np.ndarray, left: int, right: int) -> np.ndarray:
    """float64 [C]: |idx(A_i) n [left, right)| / |idx(A_i)|."""
    ends = starts + lengths
    overlap = np.minimum(ends, right) - np.maximum(starts, left)
    return np.maximum(overlap, 0) / lengths


def _touched(row: _Row, left: int, right: int) -> tuple[int, int]:
    """Indices [first, last) of the chunks that meet [left, right). Starts rise, and so do the ends."""
    first = int(np.searchsorted(row.starts + row.lengths, left, side="right"))
    return first, max(first, int(np.searchsorted(row.starts, right, side="left")))


def draw_probabilities(weights: np.ndarray, total: float, chunks: int, uniform_share: float) -> np.ndarray:
    """float64 [B]: the probability (11) of drawing chunks of these weights out of `chunks` that weigh `total`, mixed
    with `uniform_share` of the uniform law; uniform where all weights vanish."""
    if total <= 0.0:
        return np.full(len(weights), 1.0 / chunks)
    return (1.0 - uniform_share) * (weights / total) + uniform_share / chunks
