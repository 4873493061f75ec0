"""Times of calls on an accelerator, each waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def call_times_s(function: Callable[[], Any], repeats: int) -> np.ndarray:
    """Seconds of `repeats` calls, float64 [repeats], after one that compiles."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start_s)
    return np.asarray(times)
