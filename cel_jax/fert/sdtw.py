"""Subsequence alignment of one query with many trajectories (paper equations (5)-(8)).

Pure functions of arrays. Shape letters: M query frames, C candidates, N padded candidate frames, D embedding.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@jax.jit
def align(
    query: jax.Array,
    candidates: jax.Array,
    lengths: jax.Array,
    query_length: jax.Array | int | None = None,
    squared_norms: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The cheapest path of the query through each candidate, advancing one or two frames per query frame.

    query: [M, D]. candidates: [C, N, D], float32 or bfloat16. lengths: int32 [C], real frames of each candidate.
    query_length: the first frames of `query` that count (default M), so that short queries need no new compilation.
    squared_norms: float32 [C, N] of `candidates`, if known, which saves a second pass over the buffer.

    Returns (cost float32 [C], left int32 [C], right int32 [C]): equation (8)'s mean distance along the path and its
    half-open interval [left, right). A candidate shorter than the query is ineligible: cost inf, interval [0, 0).
    Ties go to the one-frame step and to the lower index.
    """
    count = jnp.asarray(query.shape[0] if query_length is None else query_length, jnp.int32)
    norms = squared_lengths(candidates) if squared_norms is None else squared_norms
    table = jnp.where(real_frames(lengths, candidates.shape[1]), distances(query, candidates, norms), jnp.inf)
    cost, left, last = jax.vmap(cheapest_path, in_axes=(0, None))(table, count)
    eligible = (lengths >= count) & jnp.isfinite(cost)
    return jnp.where(eligible, cost, jnp.inf), jnp.where(eligible, left, 0), jnp.where(eligible, last + 1, 0)


def real_frames(lengths: jax.Array, frames: int) -> jax.Array:
    """bool [C, 1, N]: which columns of the distance table are frames and not padding."""
    return (jnp.arange(frames) < lengths[:, None])[:, None, :]


def squared_lengths(frames: jax.Array) -> jax.Array:
    """float32 [..., N]: the squared norm of every stored (rounded) frame of [..., N, D]."""
    return jnp.sum(jnp.square(frames.astype(jnp.float32)), axis=-1)


def distances(query: jax.Array, candidates: jax.Array, squared_norms: jax.Array) -> jax.Array:
    """Equation (5): Euclidean distances float32 [C, M, N], by one matrix product; the radicand is clamped at 0.

    The query is rounded to the candidates' dtype, so that results are defined on what is stored.
    """
    query = query.astype(candidates.dtype)
    dots = jnp.einsum(
        "md,cnd->cmn", query, candidates, precision=_precision(candidates), preferred_element_type=jnp.float32
    )
    radicand = squared_lengths(query)[None, :, None] + squared_norms[:, None, :] - 2.0 * dots
    return jnp.sqrt(jnp.maximum(radicand, 0.0))


def _precision(candidates: jax.Array) -> jax.lax.Precision:
    """Full float32 products for float32 storage; products of bfloat16 numbers are exact in float32 already."""
    return jax.lax.Precision.HIGHEST if candidates.dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def cheapest_path(table: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Equations (6)-(8) on one distance table [M, N], of which the first `count` rows are used.

    Returns scalars: the mean distance (float32) and the path's first and last frame (int32).
    """
    total, steps = _accumulate(table, count)
    last = jnp.argmin(total).astype(jnp.int32)
    return total[last] / count.astype(table.dtype), _first_frame(steps, last), last


def _accumulate(table: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Equation (7). Returns the last used row of D, float [N], and the step taken into each cell, int32 [M-1, N]."""

    def advance(previous: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        index, costs = row
        one, two = _shift(previous, 1), _shift(previous, 2)
        used = index < count
        step = jnp.where(used, jnp.where(one <= two, 1, 2), 0).astype(jnp.int32)
        return jnp.where(used, costs + jnp.minimum(one, two), previous), step

    return jax.lax.scan(advance, table[0], (jnp.arange(1, table.shape[0]), table[1:]))


def _shift(row: jax.Array, by: int) -> jax.Array:
    """`row` moved right by `by` frames; what lies outside the trajectory costs infinity."""
    return jnp.concatenate([jnp.full((by,), jnp.inf, row.dtype), row])[: row.shape[0]]


def _first_frame(steps: jax.Array, last: jax.Array) -> jax.Array:
    """Follow the steps int32 [M-1, N] back from frame `last`; int32 throughout (a narrow index would overflow)."""
    back = functools.partial(jax.lax.scan, reverse=True)
    first, _ = back(lambda frame, row: (frame - row[frame], None), last, steps)
    return first
