"""Which chunks are in the window and what they weigh, as flat arrays: the books that both tables keep.

Shape letters: C chunks in the window, oldest episode first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from cel_jax.data.episode import Episode
from cel_jax.replay.block_sums import BlockSums
from cel_jax.replay.chunks import check_targets
from cel_jax.replay.priorities import WeightUpdate


@dataclasses.dataclass(frozen=True)
class _Entry:
    number: int  # unique, rising with arrival
    num_frames: int
    starts: np.ndarray  # int32
    weights: np.ndarray  # float64, written in place


@dataclasses.dataclass(frozen=True)
class FlatIndex:
    """episodes: ids. row: int64 [C] into them. start: int32 [C]. sums: of the weights, kept up to date.
    first: episode -> its first chunk."""

    episodes: tuple[str, ...]
    row: np.ndarray
    start: np.ndarray
    sums: BlockSums
    first: dict[str, int]


class WindowIndex:
    """Books of the window. `flat()` is rebuilt where an episode came or went; new weights are written into it."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.frames = self.chunks = self.version = 0
        self._entries: dict[str, _Entry] = {}
        self._arrivals = 0
        self._flat: FlatIndex | None = None

    @property
    def episodes(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def check(self, episode: Episode, starts: np.ndarray, weights: np.ndarray) -> None:
        """Raises ValueError or SourceError for what `insert` refuses."""
        key = episode.header.id
        if key in self._entries:
            raise ValueError(f"replay table: episode {key!r} is already in the window; drop the repeated delivery")
        if starts.shape != weights.shape or weights.dtype != np.float64 or np.any(np.diff(starts) <= 0):
            raise ValueError(
                f"replay table: episode {key!r}: expected rising starts and float64 weights of one shape, "
                f"got {starts.shape} and {weights.dtype} {weights.shape}"
            )
        _check_weights(key, weights)
        check_targets(episode, starts, self.horizon)

    def insert(self, episode: Episode, starts: np.ndarray, weights: np.ndarray) -> int:
        """Checks and books an episode; returns its number."""
        self.check(episode, starts, weights)
        self._entries[episode.header.id] = _Entry(
            self._arrivals, episode.num_frames, starts.astype(np.int32), weights.copy()
        )
        self._change(episode.num_frames, len(starts))
        self._arrivals += 1
        return self._arrivals - 1

    def remove(self, episode: str) -> _Entry:
        entry = self.entry(episode)
        del self._entries[episode]
        self._change(-entry.num_frames, -len(entry.starts))
        return entry

    def entry(self, episode: str) -> _Entry:
        if episode not in self._entries:
            raise KeyError(f"replay table: episode {episode!r} is not in the window of {len(self._entries)} episodes")
        return self._entries[episode]

    def over_window(self, window_frames: int) -> tuple[str, ...]:
        """The oldest episodes to drop so that `window_frames` hold; the newest stays even where it alone is longer."""
        out, frames = [], self.frames
        for episode, entry in list(self._entries.items())[:-1]:
            if frames <= window_frames:
                break
            out.append(episode)
            frames -= entry.num_frames
        return tuple(out)

    def set_weights(self, updates: Iterable[WeightUpdate]) -> None:
        for episode, first, weights in updates:
            target = self.entry(episode).weights
            if first < 0 or first + len(weights) > len(target):
                raise IndexError(
                    f"replay table: episode {episode!r} has {len(target)} chunks, update of "
                    f"[{first}, {first + len(weights)}) came"
                )
            _check_weights(episode, weights)
            target[first : first + len(weights)] = weights
            if self._flat is not None:
                self._flat.sums.set(self._flat.first[episode] + first, weights)
        self.version += 1

    @property
    def total(self) -> float:
        """Sum of all weights, 0.0 for an empty window."""
        return self.flat().sums.total

    def flat(self) -> FlatIndex:
        if self._flat is None:
            self._flat = self._build()
        return self._flat

    def _build(self) -> FlatIndex:
        entries = list(self._entries.values())
        sizes = np.array([len(entry.starts) for entry in entries], np.int64)
        weight = np.concatenate([np.zeros(0), *(entry.weights for entry in entries)])
        start = np.concatenate([np.zeros(0, np.int32), *(entry.starts for entry in entries)])
        first = dict(zip(self.episodes, (np.cumsum(sizes) - sizes).tolist(), strict=True))
        return FlatIndex(self.episodes, np.repeat(np.arange(len(sizes)), sizes), start, BlockSums(weight), first)

    def _change(self, frames: int, chunks: int) -> None:
        self.frames += frames
        self.chunks += chunks
        self.version += 1
        self._flat = None


def _check_weights(episode: str, weights: np.ndarray) -> None:
    if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError(f"replay table: episode {episode!r}: weights must be finite and not negative, got {weights}")


def draw(index: FlatIndex, n: int, uniform_share: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [n] chunk indices in proportion to weight (equation (11)), a share of them uniform."""
    chunks, total = len(index.start), index.sums.total
    if total <= 0.0:
        return rng.integers(0, chunks, n)
    picked = index.sums.find(rng.random(n) * total)
    if uniform_share <= 0.0:
        return picked
    uniform = rng.random(n) < uniform_share
    return np.where(uniform, rng.integers(0, chunks, n), picked)
