"""Chunks that come one by one, as Reverb gives them, stacked into a batch.

Shape letters: B batch, H horizon, S state, A action, O objects, P numbers per pose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cel_jax.replay.chunks import ChunkBatch, pad_actions


class ChunkData(NamedTuple):
    """What one chunk carries. state [S], actions [k, A] without padding, objects [O, P] or None, camera -> JPEG."""

    key: tuple[str, int]
    state: np.ndarray
    actions: np.ndarray
    objects: np.ndarray | None
    images: Mapping[str, bytes]


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
