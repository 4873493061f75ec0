"""The numpy table: exact sums, frames stored once in flat arrays, one gather a batch, deterministic under a seed.

Shape letters: B batch, H horizon, T frames, S state, A action, O objects, P numbers per pose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from cel_jax.data.episode import Episode
from cel_jax.replay.chunks import ChunkBatch
from cel_jax.replay.frame_store import FrameStore
from cel_jax.replay.priorities import WeightUpdate, draw_probabilities
from cel_jax.replay.table import TableEmpty, one_at_a_time
from cel_jax.replay.window_index import FlatIndex, WindowIndex, draw


@dataclasses.dataclass(frozen=True)
class _Gather:
    """Where each of C chunks lies. flat: the index it was made for. rows, images: int64 [C], first frame and captured
    image (-1 without images). left: int64 [C], frames from there to the episode's end. names: object [episodes]."""

    flat: FlatIndex
    rows: np.ndarray
    images: np.ndarray
    left: np.ndarray
    names: np.ndarray


@one_at_a_time
class MemoryTable:
    """Implements `ChunkTable` in this process's memory."""

    name = "memory"
    seeded = True

    def __init__(self, horizon: int, uniform_share: float = 0.0) -> None:
        self._index = WindowIndex(horizon)
        self._uniform_share = uniform_share
        self._store = FrameStore(horizon)
        self._steps: dict[str, np.ndarray] = {}  # the captured frames of each episode
        self._gather: _Gather | None = None

    @property
    def frames(self) -> int:
        return self._index.frames

    @property
    def chunks(self) -> int:
        return self._index.chunks

    @property
    def episodes(self) -> tuple[str, ...]:
        return self._index.episodes

    def keys(self) -> list[tuple[str, int]]:
        flat = self._index.flat()
        return [(flat.episodes[row], int(start)) for row, start in zip(flat.row, flat.start, strict=True)]

    def insert_episode(self, episode: Episode, starts: np.ndarray, weights: np.ndarray) -> None:
        self._index.check(episode, starts, weights)
        self._store.add(episode)
        self._index.insert(episode, starts, weights)
        self._steps[episode.header.id] = episode.image_steps

    def remove_episode(self, episode: str) -> None:
        self._index.remove(episode)
        self._store.remove(episode)
        del self._steps[episode]

    def over_window(self, window_frames: int) -> tuple[str, ...]:
        return self._index.over_window(window_frames)

    def evict(self, window_frames: int) -> tuple[str, ...]:
        gone = self.over_window(window_frames)
        for episode in gone:
            self.remove_episode(episode)
        return gone

    def set_weights(self, updates: Iterable[WeightUpdate]) -> None:
        self._index.set_weights(updates)

    def weights(self, episode: str) -> np.ndarray:
        return self._index.entry(episode).weights.copy()

    def sample(self, n: int, seed: int) -> ChunkBatch:
        if self.chunks == 0:
            raise TableEmpty(f"replay table `{self.name}`: no chunk in {len(self.episodes)} episodes")
        flat, share = self._index.flat(), self._uniform_share
        picked = draw(flat, n, share, np.random.default_rng(seed))
        probabilities = draw_probabilities(flat.sums.weights[picked], flat.sums.total, self.chunks, share)
        return self._batch(self._gathered(flat), picked, probabilities)

    def _batch(self, where: _Gather, picked: np.ndarray, probabilities: np.ndarray) -> ChunkBatch:
        rows, starts = where.rows[picked], where.flat.start[picked]
        names = where.names[where.flat.row[picked]]
        return ChunkBatch(
            keys=tuple(zip(names.tolist(), starts.tolist(), strict=True)),
            state=self._store.state(rows),
            actions=self._store.actions(rows),
            action_mask=np.arange(self._index.horizon) < where.left[picked, None],
            objects=self._store.objects(rows),
            images=self._store.images(where.images[picked]),
            priority_version=self._index.version,
            probabilities=probabilities,
        )

    def _gathered(self, flat: FlatIndex) -> _Gather:
        if self._gather is None or self._gather.flat is not flat:
            self._gather = self._locate(flat)
        return self._gather

    def _locate(self, flat: FlatIndex) -> _Gather:
        places = [self._store.place(episode) for episode in flat.episodes]
        base = np.array([place.row for place in places], np.int64)[flat.row]
        frames = np.array([place.rows for place in places], np.int64)[flat.row] - (self._index.horizon - 1)
        names = np.array([*flat.episodes, ""], object)[:-1]  # never an array of characters
        return _Gather(flat, base + flat.start, self._image_positions(flat), frames - flat.start, names)

    def _image_positions(self, flat: FlatIndex) -> np.ndarray:
        """int64 [C]: chunks start at captured frames alone; without images nothing is looked up."""
        parts = []
        for episode in flat.episodes:
            starts, steps = self._index.entry(episode).starts, self._steps[episode]
            first = self._store.place(episode).image
            parts.append(first + np.searchsorted(steps, starts) if len(steps) else np.full(len(starts), -1))
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def close(self) -> None:
        self._store = FrameStore(self._index.horizon)
