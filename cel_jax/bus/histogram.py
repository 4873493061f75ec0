"""A distribution of durations in few numbers: counts over logarithmic bins, cheap to keep and to add up."""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Mapping

BINS_PER_DOUBLING = 8  # a quantile is known to 9 %
LEAST_S = 1e-6


class Histogram:
    """Counts by bin; bin k holds durations from LEAST_S * 2^(k/8) on. One thread may add while another takes."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts, self._lock = collections.Counter[int](counts or {}), threading.Lock()

    def add(self, duration_s: float) -> None:
        with self._lock:
            self.counts[int(BINS_PER_DOUBLING * math.log2(max(duration_s, LEAST_S) / LEAST_S))] += 1

    def update(self, other: Histogram) -> None:
        self.counts.update(other.counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def quantile_s(self, share: float) -> float:
        """The upper edge of the bin that holds this quantile. Raises ValueError when nothing was added."""
        if not self.total:
            raise ValueError("an empty distribution has no quantiles")
        need, seen = share * self.total, 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= need:
                return upper_s(index)
        return upper_s(max(self.counts))

    def take(self) -> dict[str, int]:
        """The counts as plain values, and begins anew."""
        with self._lock:
            counts, self.counts = self.counts, collections.Counter()
        return {str(index): count for index, count in sorted(counts.items())}


def upper_s(index: int) -> float:
    """Where bin `index` ends."""
    return LEAST_S * 2.0 ** ((index + 1) / BINS_PER_DOUBLING)
