"""Peers of our alignment in numba (`pip install numba`, for benchmarks alone): one trajectory after another.

Shape letters: M query frames, N frames of one trajectory, F frames of all, D embedding, C trajectories.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import numpy as np

if importlib.util.find_spec("numba") is not None:
    import numba

Search = Callable[[], list[tuple[float, int, int]]]


def is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def plain_search(query: np.ndarray, trajectories: list[np.ndarray]) -> Search:
    """The form that STRAP uses: for each trajectory the distances by compiled numpy, the norms anew at each query, the
    whole table of sums, and a walk back through it. float32 [M, D], [N, D] each."""
    table, sums, walk = (numba.njit(function) for function in (_distances, _sums, _walk_back))

    def search() -> list[tuple[float, int, int]]:
        return [walk(sums(table(query, trajectory))) for trajectory in trajectories]

    return search


def product_search(query: np.ndarray, frames: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> Search:
    """A strong peer: one numpy product over all frames [F, D] with their norms known, then compiled dynamic programming
    of the trajectories in parallel, with the same sums in float32."""
    norms = np.square(frames).sum(axis=1)
    steps = numba.njit(parallel=True)(_every_trajectory)
    found = np.zeros((len(lengths), 3))

    def search() -> list[tuple[float, int, int]]:
        radicand = np.square(query).sum(axis=1)[:, None] + norms - 2.0 * (query @ frames.T)
        steps(np.sqrt(np.maximum(radicand, 0.0)), offsets, lengths, found)
        return [(cost, int(left), int(right)) for cost, left, right in found]

    return search


def _distances(query: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
    of_query, of_trajectory = np.sum(query**2, axis=1), np.sum(trajectory**2, axis=1)
    squared = np.expand_dims(of_query, 1) + np.expand_dims(of_trajectory, 0) - 2 * np.dot(query, trajectory.T)
    return np.sqrt(np.maximum(squared, 0.0))


def _sums(table: np.ndarray) -> np.ndarray:
    """[M, N + 2] with two columns of infinity at the left."""
    rows, frames = table.shape
    total = np.full((rows, frames + 2), np.inf)
    total[0, 2:] = table[0]
    for i in range(1, rows):
        for j in range(frames):
            total[i, j + 2] = table[i, j] + min(total[i - 1, j + 1], total[i - 1, j])
    return total


def _walk_back(total: np.ndarray) -> tuple[float, int, int]:
    rows = len(total)
    last = int(np.argmin(total[rows - 1]))
    if not math.isfinite(total[rows - 1, last]):
        return np.inf, 0, 0
    at = last
    for i in range(rows - 1, 0, -1):
        at = at - 1 if total[i - 1, at - 1] <= total[i - 1, at - 2] else at - 2
    return total[rows - 1, last] / rows, at - 2, last - 1


def _every_trajectory(table: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, found: np.ndarray) -> None:
    """found: float64 [C, 3], the cost and interval of each. Sums and first frames in place, from right to left."""
    rows = len(table)
    for c in numba.prange(len(lengths)):
        offset, frames = offsets[c], lengths[c]
        total, first = table[0, offset : offset + frames].copy(), np.arange(frames)
        for i in range(1, rows):
            for j in range(frames - 1, -1, -1):
                one = total[j - 1] if j >= 1 else np.inf
                two = total[j - 2] if j >= 2 else np.inf
                first[j] = first[j - 1 if one <= two else j - 2] if j >= 1 else 0
                total[j] = table[i, offset + j] + min(one, two)
        last = np.argmin(total)
        finite = np.isfinite(total[last])
        found[c, 0] = total[last] / rows
        found[c, 1], found[c, 2] = (first[last], last + 1) if finite else (0, 0)
