"""The path of an alignment, for drawing: the search itself carries only its two ends."""

from __future__ import annotations

import numpy as np


def best_path(table: np.ndarray) -> list[tuple[int, int]]:
    """(query frame, trajectory frame) cells of the cheapest path through distances [M, N], N >= M.

    Ties go as in the search.
    """
    totals = [table[0].astype(np.float64)]
    for costs in table[1:]:
        before = np.concatenate([[np.inf, np.inf], totals[-1]])
        totals.append(costs + np.minimum(before[1:-1], before[:-2]))
    at = int(np.argmin(totals[-1]))
    path = [(len(table) - 1, at)]
    for row in range(len(table) - 2, -1, -1):
        one, two = (totals[row][at - by] if at >= by else np.inf for by in (1, 2))
        at -= 1 if one <= two else 2
        path.append((row, at))
    return path[::-1]
