"""A literal float64 twin of the alignment: every admissible path, one at a time."""

from __future__ import annotations

import numpy as np


def table64(query: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """float64 [M, N] Euclidean distances by subtraction, not by a matrix product."""
    difference = query.astype(np.float64)[:, None] - candidate.astype(np.float64)[None]
    return np.sqrt((difference**2).sum(-1))


def every_path(rows: int, columns: int) -> list[list[int]]:
    """All paths with steps of one or two; for one end frame, those with later one-frame steps come first."""
    paths = [[j] for j in range(columns)]
    for _ in range(rows - 1):
        paths = [[path[0] - step, *path] for step in (1, 2) for path in paths if path[0] >= step]
    return paths


def path_costs(table: np.ndarray) -> dict[tuple[int, ...], float]:
    """Every admissible path and its mean distance (summed from the first frame on, as the recursion does)."""
    rows = np.arange(len(table))
    return {tuple(path): sum(table[rows, path]) / len(table) for path in every_path(*table.shape)}


def brute_align(table: np.ndarray) -> tuple[float, int, int]:
    """(cost, left, right) by the documented tie rule: lower end frame, then one-frame steps from the end backwards."""
    costs = path_costs(table)
    if not costs:
        return np.inf, 0, 0
    best = min(costs.values())
    ties = [path for path, cost in costs.items() if cost <= best + 1e-12]
    chosen = min(ties, key=lambda path: (path[-1], tuple(np.diff(path)[::-1])))
    return best, chosen[0], chosen[-1] + 1


def margin(table: np.ndarray, left: int, right: int) -> float:
    """How much dearer the cheapest path with another interval is (inf if there is none)."""
    costs = path_costs(table)
    others = [cost for path, cost in costs.items() if (path[0], path[-1] + 1) != (left, right)]
    return (min(others) - min(costs.values())) if others else np.inf
