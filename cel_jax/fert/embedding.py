"""Observation embeddings for retrieval (paper equations (2) and (3)).

Shape letters: B frames, n = g x g visual tokens, W token width, S state numbers, O objects, P pose numbers, D embedding
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.data import normalize
from cel_jax.data.normalize import NormStats

EPSILON = 1e-6  # of equation (3)
POOLED = 4  # tokens per side after pooling


class BadEmbeddings(ValueError):
    """Frames that cannot be embedded, or embeddings that cannot be stored or searched: a camera is missing, numbers are
    not finite, the width is another one. The message names the episode."""


def pool_tokens(tokens: jax.Array) -> jax.Array:
    """Equation (2): average [B, g*g, W] to a 4x4 grid, [B, 16*W] in row order; a grid below 4x4 stays as it is.

    A side that is no multiple of four is averaged over windows that cover it evenly. Raises ValueError for a token
    count that is no square.
    """
    batch, count, width = tokens.shape
    side = math.isqrt(count)
    if side * side != count:
        raise ValueError(f"visual tokens must form a square grid, got {count} of them")
    if side <= POOLED:
        return tokens.reshape(batch, -1)
    weights = jnp.asarray(_pool_weights(side))
    grid = tokens.reshape(batch, side, side, width)
    return jnp.einsum("iy,jx,byxw->bijw", weights, weights, grid, precision="highest").reshape(batch, -1)


def _pool_weights(side: int) -> np.ndarray:
    """float32 [4, g]: row i averages the tokens floor(i g / 4) up to ceil((i + 1) g / 4)."""
    weights = np.zeros((POOLED, side), np.float32)
    for row in range(POOLED):
        start, stop = row * side // POOLED, -(-(row + 1) * side // POOLED)
        weights[row, start:stop] = 1 / (stop - start)
    return weights


def join_halves(visual: jax.Array, state: jax.Array) -> jax.Array:
    """Equation (3): both halves divided by their norm + 1e-6, so that each weighs the same. [B, D]."""
    return jnp.concatenate([_unit(visual.astype(jnp.float32)), _unit(state.astype(jnp.float32))], axis=-1)


def _unit(rows: jax.Array) -> jax.Array:
    return rows / (jnp.linalg.norm(rows, axis=-1, keepdims=True) + EPSILON)


class Embedder:
    """Embeds frames in fixed batch sizes, so that it compiles once per size.

    vision_fn: images float32 [B, h, w, 3] in -1..1 -> the tower's tokens before its head [B, n, W]; called with
        `vision_params` first where these are given (so that large weights are arguments, not constants of the program).
        None: `state` mode, where the normalised object poses are the visual half.
    cameras: the fixed order of the cameras. norm_stats: the policy's normalisation.
    """

    def __init__(
        self,
        vision_fn: Callable[..., jax.Array] | None,
        norm_stats: NormStats,
        cameras: Sequence[str] = (),
        vision_params: Any = None,
        batch_sizes: Sequence[int] = (32, 128),
    ):
        if vision_fn is not None and not cameras:
            raise ValueError("an embedder of images needs the names of the cameras, in order")
        if vision_fn is None and norm_stats.objects_mean is None:
            raise ValueError("an embedder without a vision tower needs object statistics in norm_stats")
        self.cameras = tuple(cameras) if vision_fn is not None else ()
        self._vision_fn = vision_fn
        self._params = vision_params
        self._stats = norm_stats
        self._sizes = sorted(batch_sizes)
        self._embed = jax.jit(self._embed_batch)

    def __call__(
        self, images: Mapping[str, np.ndarray], state: np.ndarray, objects: np.ndarray | None = None
    ) -> np.ndarray:
        """float32 [B, D] of B >= 1 frames.

        images: camera -> uint8 (or float32 in -1..1) [B, h, w, 3]. state: float32 [B, S]. objects: float32 [B, O, P],
        needed without a tower. Raises BadEmbeddings for a missing camera or missing poses.
        """
        frames = self._frames(images, state, objects)
        return np.concatenate([self._run(part) for part in _batches(frames, len(state), self._sizes)])

    def _frames(
        self, images: Mapping[str, np.ndarray], state: np.ndarray, objects: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        missing = [name for name in self.cameras if name not in images]
        if missing or (self._vision_fn is None and objects is None):
            raise BadEmbeddings(f"cannot embed: cameras {missing} missing, object poses {objects is not None}")
        visual = {name: images[name] for name in self.cameras} if self.cameras else {"objects": np.asarray(objects)}
        wrong = {name: len(rows) for name, rows in visual.items() if len(rows) != len(state)}
        if wrong or not len(state):
            raise BadEmbeddings(f"cannot embed: {len(state)} states but {wrong} frames; expected the same number, >= 1")
        return {"state": np.asarray(state, np.float32), **visual}

    def _run(self, part: tuple[dict[str, np.ndarray], int]) -> np.ndarray:
        frames, count = part
        return np.asarray(self._embed(self._params, frames))[:count]

    def _embed_batch(self, params: Any, frames: dict[str, jax.Array]) -> jax.Array:
        stats = self._stats
        state = normalize.normalize(frames["state"], stats.state_mean, stats.state_std)
        if self._vision_fn is None:
            poses = normalize.normalize(frames["objects"], stats.objects_mean, stats.objects_std)
            return join_halves(poses.reshape(len(poses), -1), state)
        pooled = [pool_tokens(self._tokens(params, frames[name])) for name in self.cameras]
        return join_halves(jnp.concatenate(pooled, axis=-1), state)

    def _tokens(self, params: Any, images: jax.Array) -> jax.Array:
        assert self._vision_fn is not None
        if images.dtype == jnp.uint8:
            images = images.astype(jnp.float32) / 127.5 - 1.0
        tokens = self._vision_fn(images) if params is None else self._vision_fn(params, images)
        return tokens.astype(jnp.float32)


def _batches(
    frames: dict[str, np.ndarray], total: int, sizes: Sequence[int]
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Parts of `frames`, each padded (by repeating its last row) to one of the `sizes`, with their real counts."""
    start = 0
    while start < total:
        count = min(total - start, sizes[-1])
        size = next(s for s in sizes if s >= count)
        rows = np.minimum(np.arange(start, start + size), start + count - 1)
        yield {name: values[rows] for name, values in frames.items()}, count
        start += count


def tower_hash(vision_params: Any, norm_stats: NormStats, cameras: Sequence[str], stride_frames: int) -> str:
    """Names everything that decides an embedding: the tower's weights, the normalisation, cameras and stride."""
    digest = hashlib.sha256(repr((tuple(cameras), stride_frames, POOLED)).encode())
    leaves, _ = jax.tree_util.tree_flatten_with_path((vision_params, normalize.to_dict(norm_stats)))
    for path, leaf in leaves:
        values = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]
