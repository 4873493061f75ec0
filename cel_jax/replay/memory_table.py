"""The numpy table: exact running sums, frames stored once, deterministic under a seed.

Shape letters: B batch, H horizon, T frames, S state, A action, O objects, P numbers per pose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cel_jax.data.episode import Episode
from cel_jax.replay.chunks import ChunkBatch, pad_actions
from cel_jax.replay.priorities import WeightUpdate, draw_probabilities
from cel_jax.replay.table import TableEmpty
from cel_jax.replay.window_index import WindowIndex, draw


class ChunkData(NamedTuple):
    """What one chunk carries. state [S], actions [k, A] without padding, objects [O, P] or None, camera -> JPEG."""

    key: tuple[str, int]
    state: np.ndarray
    actions: np.ndarray
    objects: np.ndarray | None
    images: Mapping[str, bytes]


class MemoryTable:
    """Implements `ChunkTable` in this process's memory."""

    name = "memory"
    seeded = True

    def __init__(self, horizon: int, uniform_share: float = 0.0) -> None:
        self._index = WindowIndex(horizon)
        self._uniform_share = uniform_share
        self._data: dict[str, Episode] = {}
        self._image_rows: dict[str, dict[int, int]] = {}

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
        self._index.insert(episode, starts, weights)
        self._data[episode.header.id] = episode
        self._image_rows[episode.header.id] = {int(step): row for row, step in enumerate(episode.image_steps)}

    def remove_episode(self, episode: str) -> None:
        self._index.remove(episode)
        del self._data[episode], self._image_rows[episode]

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
        flat = self._index.flat()
        picked = draw(flat, n, self._uniform_share, np.random.default_rng(seed))
        rows = [self._chunk(flat.episodes[flat.row[i]], int(flat.start[i])) for i in picked]
        probabilities = draw_probabilities(flat.weight[picked], flat.prefix[-1], self.chunks, self._uniform_share)
        return make_batch(rows, self._index.horizon, self._index.version, probabilities)

    def _chunk(self, episode: str, start: int) -> ChunkData:
        data = self._data[episode]
        objects = None if data.objects is None else data.objects[start]
        row = self._image_rows[episode].get(start)
        images = {} if row is None else {camera: jpegs[row] for camera, jpegs in data.images.items()}
        return ChunkData(
            (episode, start), data.state[start], data.action[start : start + self._index.horizon], objects, images
        )

    def close(self) -> None:
        self._data.clear()


def make_batch(rows: Sequence[ChunkData], horizon: int, version: int, probabilities: np.ndarray) -> ChunkBatch:
    """Stacks chunks into a batch; pads actions at the episode's end."""
    lengths = np.array([len(row.actions) for row in rows])
    objects = None if rows[0].objects is None else np.stack([row.objects for row in rows if row.objects is not None])
    return ChunkBatch(
        keys=tuple(row.key for row in rows),
        state=np.stack([row.state for row in rows]),
        actions=np.stack([pad_actions(row.actions, horizon) for row in rows]),
        action_mask=np.arange(horizon) < lengths[:, None],
        objects=objects,
        images={camera: [row.images[camera] for row in rows] for camera in rows[0].images},
        priority_version=version,
        probabilities=probabilities,
    )
