"""How fast one failure's query is aligned with a window of successes, against the device's measured memory bandwidth.

    python -m bench.alignment --candidates=500 --frames=300 --dim=88
    python -m bench.alignment --candidates=292 --frames=400 --dim=55312 --dtype=bfloat16  (a full window, 13 GB)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.fert.sdtw import align, squared_lengths


def seconds(function: Callable[..., Any], *args: Any, repeats: int) -> tuple[float, float]:
    """(best, median) of `repeats` calls after one that compiles, each waited for."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return min(times), float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"candidates": 500, "frames": 300, "dim": 88, "query": 30, "repeats": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    flags = parser.parse_args()
    shape = (flags.candidates, flags.frames, flags.dim)
    window = jax.jit(lambda key: jax.random.normal(key, shape, jnp.dtype(flags.dtype)))(jax.random.PRNGKey(0))
    query = jax.random.normal(jax.random.PRNGKey(1), (flags.query, flags.dim))
    lengths, norms = jnp.full(flags.candidates, flags.frames), jax.jit(squared_lengths)(window)
    best, median = seconds(align, query, window, lengths, flags.query, norms, repeats=flags.repeats)
    read, _ = seconds(jax.jit(lambda x: jnp.sum(x, dtype=jnp.float32)), window, repeats=flags.repeats)
    device, size_gb = jax.devices()[0].device_kind, window.nbytes / 1e9
    print(f"{device}: query of {flags.query} frames against {shape} {flags.dtype}, {size_gb:.3f} GB")
    print(f"align: best {best * 1e3:.2f} ms, median {median * 1e3:.2f} ms; reading it once: {read * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
