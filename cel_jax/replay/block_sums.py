"""Running sums of weights in blocks: a changed weight costs one block, a draw two searches, and nothing drifts.

Every sum is formed anew from the weights of its block, never added to or subtracted from, so a table that was changed a
million times draws what a fresh one draws.
Shape letters: C weights, B blocks, n targets.
"""

from __future__ import annotations

import numpy as np

BLOCK = 1024


class BlockSums:
    """weights: float64 [C], finite and not negative."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = np.zeros(-(-len(weights) // BLOCK) * BLOCK)
        self.weights[: len(weights)] = weights
        self._inner = np.cumsum(self.weights.reshape(-1, BLOCK), axis=1)
        self._outer = np.cumsum(self._inner[:, -1])

    @property
    def total(self) -> float:
        """0.0 for no weights."""
        return float(self._outer[-1]) if len(self._outer) else 0.0

    def set(self, first: int, weights: np.ndarray) -> None:
        """Replaces the weights from `first` on."""
        if not len(weights):
            return
        self.weights[first : first + len(weights)] = weights
        begin, end = first // BLOCK, (first + len(weights) - 1) // BLOCK + 1
        self._inner[begin:end] = np.cumsum(self.weights.reshape(-1, BLOCK)[begin:end], axis=1)
        self._outer = np.cumsum(self._inner[:, -1])

    def find(self, targets: np.ndarray) -> np.ndarray:
        """int64 [n]: for float64 targets in [0, total] the first weight whose running sum exceeds each; it is positive.

        A target that rounding puts at a sum's end stays with the last positive weight before it.
        """
        last = int(np.searchsorted(self._outer, self.total, side="left"))  # the last block that weighs anything
        block = np.minimum(np.searchsorted(self._outer, targets, side="right"), last)
        base = np.where(block > 0, self._outer[block - 1], 0.0)
        within = np.minimum(targets - base, np.nextafter(self._inner[block, -1], 0.0))
        return block * BLOCK + self._first_beyond(block, within)

    def _first_beyond(self, block: np.ndarray, within: np.ndarray) -> np.ndarray:
        """A binary search in each target's own block."""
        flat, low = self._inner.reshape(-1), np.zeros(len(block), np.int64)
        step = BLOCK // 2
        while step:
            beyond = flat[block * BLOCK + low + step - 1] <= within
            low += step * beyond
            step //= 2
        return low
