"""Subsequence alignment of queries with many trajectories at once (paper equations (5)-(8)).

All stored frames lie in one flat buffer, each trajectory a contiguous run, so that distances are one matrix product
and equation (7) advances on every trajectory in the same vector. The path's first frame is carried along with its cost,
so nothing is traced back. Pure functions of arrays.
Shape letters: Q queries, M query frames, F stored frames, D embedding, C trajectories, W longest trajectory, K matches.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray


class Layout(NamedTuple):
    """Where the trajectories lie: int32 [C] first row and number of rows of each; a length of 0 is no trajectory."""

    offsets: Array
    lengths: Array


class Alignment(NamedTuple):
    """cost: float32 [Q, C], equation (8)'s mean distance, inf for an ineligible trajectory (shorter than the query).
    left, right: int32 [Q, C], the half-open interval within the trajectory, [0, 0) for an ineligible one."""

    cost: Array
    left: Array
    right: Array


@functools.partial(jax.jit, static_argnames=("longest",))
def align(
    queries: jax.Array,
    counts: jax.Array,
    frames: jax.Array,
    squared_norms: jax.Array,
    places: jax.Array,
    layout: Layout,
    longest: int,
) -> Alignment:
    """The cheapest path of each query through each trajectory, advancing one or two frames per query frame.

    queries: [Q, M, D]. counts: int32 [Q], the first frames of each query that are used, so that short ones need no new
    compilation. frames: [F, D], float32 or bfloat16. squared_norms: float32 [F] of `frames`, taken at insertion.
    places: int32 [F], the number of each frame within its trajectory, -1 where there is none.
    longest: at least the longest trajectory; static.
    Ties go to the one-frame step and to the lower index.
    """
    return align_table(distances(queries, frames, squared_norms), counts, places, layout, longest)


@functools.partial(jax.jit, static_argnames=("longest",))
def align_table(table: jax.Array, counts: jax.Array, places: jax.Array, layout: Layout, longest: int) -> Alignment:
    """`align` from the distances float32 [Q, M, F]."""
    total, first = cheapest_paths(table, counts, places)
    return best_ends(total, first, counts, layout, longest)


def squared_lengths(frames: jax.Array) -> jax.Array:
    """float32 [...]: the squared norm of every stored (rounded) frame of [..., D]."""
    return jnp.sum(jnp.square(frames.astype(jnp.float32)), axis=-1)


@jax.jit
def distances(queries: jax.Array, frames: jax.Array, squared_norms: jax.Array) -> jax.Array:
    """Equation (5): Euclidean distances float32 [Q, M, F], by one matrix product; the radicand is clamped at 0.

    The queries are rounded to the frames' dtype, so that results are defined on what is stored.
    """
    queries = queries.astype(frames.dtype)
    dots = products(queries.reshape(-1, queries.shape[-1]), frames).reshape(*queries.shape[:2], -1)
    radicand = squared_lengths(queries)[..., None] + squared_norms - 2.0 * dots
    return jnp.sqrt(jnp.maximum(radicand, 0.0))


def products(rows: jax.Array, frames: jax.Array) -> jax.Array:
    """float32 [R, F] of rows [R, D] and frames [F, D], summed in float32; products of bfloat16 numbers are exact."""
    precision = jax.lax.Precision.HIGHEST if frames.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jnp.einsum("rd,fd->rf", rows, frames, precision=precision, preferred_element_type=jnp.float32)


def cheapest_paths(
    table: jax.Array, counts: jax.Array, places: jax.Array, unroll: int | bool = 1
) -> tuple[jax.Array, jax.Array]:
    """Equations (6) and (7) on distances [Q, M, F]: for every frame, what the cheapest path that ends in it costs.

    Returns (sum of distances float32 [Q, F], inf where no path ends; place of the path's first frame int32 [Q, F]).
    """
    inside = [places >= step for step in range(3)]
    start = jnp.where(inside[0], table[:, 0], jnp.inf), jnp.broadcast_to(places, table[:, 0].shape)

    def advance(previous: tuple[jax.Array, jax.Array], row: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
        (total, first), (index, costs) = jax.lax.optimization_barrier(previous), row  # unrolled, steps stay apart
        one, two = (jnp.where(inside[by], _shift(total, by), jnp.inf) for by in (1, 2))
        used = (index < counts)[:, None]
        moved = jnp.where(one <= two, _shift(first, 1), _shift(first, 2))
        total = jnp.where(used, costs + jnp.minimum(one, two), total)
        return (total, jnp.where(used, moved, first)), None

    rows = jnp.arange(1, table.shape[1]), jnp.moveaxis(table[:, 1:], 1, 0)
    return jax.lax.scan(advance, start, rows, unroll=unroll)[0]


def _shift(rows: jax.Array, by: int) -> jax.Array:
    """`rows` [Q, F] moved right by `by` frames; what enters at the left is never used (`places` forbids it)."""
    return jnp.pad(rows, ((0, 0), (by, 0)))[:, : rows.shape[1]]


def best_ends(total: jax.Array, first: jax.Array, counts: jax.Array, layout: Layout, longest: int) -> Alignment:
    """Equation (8): the best end of a path in each trajectory, the lowest one of equals."""
    within = jnp.arange(longest)
    rows = jnp.minimum(layout.offsets[:, None] + within, total.shape[1] - 1)
    ends = jnp.where(within < layout.lengths[:, None], total[:, rows], jnp.inf)  # [Q, C, W]
    last = jnp.argmin(ends, axis=-1).astype(jnp.int32)
    best = jnp.min(ends, axis=-1)
    left = jnp.take_along_axis(first, jnp.minimum(layout.offsets + last, total.shape[1] - 1), axis=1)
    eligible = jnp.isfinite(best)
    cost = jnp.where(eligible, best / counts[:, None].astype(best.dtype), jnp.inf)
    return Alignment(cost, jnp.where(eligible, left, 0), jnp.where(eligible, last + 1, 0))


@functools.partial(jax.jit, static_argnames=("k",))
def nearest(alignment: Alignment, k: int) -> tuple[jax.Array, Alignment]:
    """The k cheapest trajectories of each query: (their numbers int32 [Q, K], their alignment); the lower of equals."""
    _, rows = jax.lax.top_k(-alignment.cost, k)
    return rows, Alignment(*(jnp.take_along_axis(part, rows, axis=1) for part in alignment))
