"""A token bucket: how long to wait so that a transfer keeps under its bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """`rate_bytes_s` bytes a second on average, `burst_bytes` at once. 0 means no limit. One thread owns it."""

    def __init__(self, rate_bytes_s: float, burst_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = float(rate_bytes_s), float(burst_bytes), clock
        self._tokens, self._last_s = self._burst, clock()

    def take(self, size_bytes: int) -> float:
        """Takes the tokens and returns the seconds to wait before sending."""
        if self._rate <= 0.0:
            return 0.0
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._rate) - size_bytes
        self._last_s = now_s
        return max(0.0, -self._tokens / self._rate)
