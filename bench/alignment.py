"""How fast one failure's query is aligned with a window of successes, against reading the window once.

python -m bench.alignment [--quick]
python -m bench.alignment --candidates=292 --frames=400 --dim=55312 --dtype=bfloat16   (a full window, 13 GB)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bench import report
from bench.report import Figure
from bench.timing import call_times_s
from cel_jax.fert.sdtw import align, squared_lengths

NAME = "alignment"
MOST_READS = "<= 1.3"  # a full window on an accelerator: the query costs little more than one pass over it
FULL_WINDOW_BYTES = 10**9


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    report.write(NAME, measure(flags), report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    for name, value in {"candidates": 500, "frames": 300, "dim": 88, "query": 30, "repeats": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    flags = parser.parse_args(argv)
    if flags.quick:
        flags.candidates, flags.repeats = min(flags.candidates, 100), min(flags.repeats, 5)
    return flags


def measure(flags: argparse.Namespace) -> list[Figure]:
    """Milliseconds of one query and of one pass, best of the repeats, and their ratio."""
    shape = (flags.candidates, flags.frames, flags.dim)
    window = jax.jit(lambda key: jax.random.normal(key, shape, jnp.dtype(flags.dtype)))(jax.random.key(0))
    query = jax.random.normal(jax.random.key(1), (flags.query, flags.dim))
    lengths, norms = jnp.full(flags.candidates, flags.frames), jax.jit(squared_lengths)(window)
    aligned_s = call_times_s(lambda: align(query, window, lengths, flags.query, norms), flags.repeats)
    sum_all = jax.jit(lambda x: jnp.sum(x, dtype=jnp.float32))
    read_s = call_times_s(lambda: sum_all(window), flags.repeats)
    what = f"{flags.query} frames against {flags.candidates} x {flags.frames} x {flags.dim} {flags.dtype}"
    return _figures(what, window.nbytes, aligned_s, read_s)


def _figures(what: str, size_bytes: int, aligned_s: np.ndarray, read_s: np.ndarray) -> list[Figure]:
    full = size_bytes >= FULL_WINDOW_BYTES and jax.default_backend() != "cpu"
    aligned_ms, read_ms = 1e3 * aligned_s.min(), 1e3 * read_s.min()
    peer = "reading it once (sum)"
    return [
        Figure(f"S-DTW, {what}, best", aligned_ms, "ms", "", peer, read_ms),
        Figure("S-DTW, median", 1e3 * float(np.median(aligned_s)), "ms", "", peer, 1e3 * float(np.median(read_s))),
        Figure("S-DTW over one reading", aligned_ms / read_ms, "x", MOST_READS if full else "", peer, 1.0),
        Figure("window read", size_bytes / read_s.min() / 1e9, "GB/s"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
