"""Alignment in float64, slowly and plainly: what the benchmarks check their answers against.

Shape letters: M query frames, N frames of one trajectory, D embedding.
"""

from __future__ import annotations

import dataclasses

import numpy as np

COST_TOLERANCE = 1e-3
DECIDED_MARGIN = 2e-3  # intervals must agree where the next best interval is dearer by more than this


@dataclasses.dataclass(frozen=True)
class Answer:
    """cost: mean distance. [left, right): its interval. margin: how much dearer the best other interval is."""

    cost: float
    left: int
    right: int
    margin: float


def distances64(query: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
    """float64 [M, N] Euclidean distances of [M, D] and [N, D], by differences."""
    query, trajectory = query.astype(np.float64), trajectory.astype(np.float64)
    return np.stack([np.sqrt(np.square(trajectory - row).sum(axis=1)) for row in query])


def interval_costs(table: np.ndarray) -> np.ndarray:
    """float64 [N, N]: the mean distance of the cheapest path from frame s to frame e, inf where there is none.

    table: [M, N]. One recursion for each first frame, all of them side by side.
    """
    rows, frames = table.shape
    total = np.full((frames, frames), np.inf)
    np.fill_diagonal(total, table[0])
    for costs in table[1:]:
        before = np.pad(total, ((0, 0), (2, 0)), constant_values=np.inf)
        total = costs + np.minimum(before[:, 1:-1], before[:, :-2])
    return total / rows


def best_interval(table: np.ndarray) -> Answer:
    """Equation (8) with its margin; a trajectory shorter than the query has cost inf."""
    costs = interval_costs(table)
    best = float(costs.min(initial=np.inf))
    if not np.isfinite(best):
        return Answer(np.inf, 0, 0, np.inf)
    end = int(np.flatnonzero(costs.min(axis=0) == best)[0])
    left = int(np.flatnonzero(costs[:, end] == best)[-1])  # one-frame steps first: the latest start
    costs[left, end] = np.inf
    return Answer(best, left, end + 1, float(costs.min()) - best)


def disagreement(found: tuple[float, int, int], answer: Answer) -> str:
    """What is wrong with (cost, left, right), or ''."""
    cost, left, right = found
    if np.isfinite(answer.cost) != np.isfinite(cost) or abs(cost - answer.cost) > COST_TOLERANCE:
        return f"cost {cost}, float64 says {answer.cost}"
    if answer.margin > DECIDED_MARGIN and (left, right) != (answer.left, answer.right):
        return f"interval [{left}, {right}), float64 says [{answer.left}, {answer.right}) by {answer.margin:.4f}"
    return ""
