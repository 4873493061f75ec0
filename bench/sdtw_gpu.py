"""One failure's query, and sixteen at once, against a full window on an accelerator: how close to reading it once.

    python -m bench.sdtw_gpu [--quick] [--frames=350000] [--dim=55312] [--dtype=bfloat16]

The window holds random trajectories of 250 to 512 coarse frames, made on the device; the queries are noisy, stretched
pieces of them. Every answer that is checked is compared with float64 on the host. `best of` figures are calls waited
for one by one, as a learner makes them; `queued` figures of the parts are calls in a row, without the wait.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import report
from bench.alignment_reference import best_interval, disagreement, distances64
from bench.report import Figure
from bench.timing import call_times_s
from cel_jax.fert import sdtw
from cel_jax.fert.sdtw import Alignment, Layout

NAME = "sdtw_gpu"
STRIDE, SHORTEST, LONGEST, BLOCK_ROWS = 3, 250, 512, 1024
QUERY_FRAMES, QUERIES, TOP_K = 30, 16, 10
ONE_TARGET, MANY_TARGET = "<= 1.2", "<= 1.5"
FULL_WINDOW_BYTES = 10**10


class Window(NamedTuple):
    """frames: [F, D]. norms: float32 [F]. places: int32 [F]. layout: of C trajectories."""

    frames: jax.Array
    norms: jax.Array
    places: jax.Array
    layout: Layout


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    if jax.default_backend() == "cpu" and not flags.quick:
        print("sdtw_gpu: skipped, no accelerator; --quick runs a small window here", flush=True)
        return 0
    window = make_window(flags.frames // STRIDE, flags.dim, jnp.dtype(flags.dtype))
    queries = make_queries(window, flags.queries)
    checked = check(window, queries)
    print(f"{checked} alignments agree with float64", flush=True)
    report.write(NAME, measure(window, queries, flags.repeats), report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    for name, value in {"frames": 350_000, "dim": 55_312, "queries": QUERIES, "repeats": 30}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    flags = parser.parse_args(argv)
    if flags.quick:
        flags.frames, flags.dim, flags.repeats = min(flags.frames, 12_000), min(flags.dim, 512), 3
    return flags


def make_window(rows: int, dim: int, dtype: Any) -> Window:
    """`rows` coarse frames of random directions, each of length sqrt(2), in blocks, so that little else is needed."""
    lengths = trajectory_lengths(rows)
    padded = -(-rows // BLOCK_ROWS) * BLOCK_ROWS
    frames, norms = jnp.zeros((padded, dim), dtype), jnp.zeros(padded, jnp.float32)
    for start in range(0, padded, BLOCK_ROWS):
        frames, norms = _fill(frames, norms, jax.random.fold_in(jax.random.key(0), start), start)
    offsets = np.cumsum(lengths) - lengths
    places = np.concatenate([*(np.arange(length) for length in lengths), np.zeros(padded - rows)]).astype(np.int32)
    layout = Layout(jnp.asarray(offsets, jnp.int32), jnp.asarray(lengths, jnp.int32))
    return Window(frames, norms, jnp.asarray(places), layout)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _fill(frames: jax.Array, norms: jax.Array, key: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = jax.random.normal(key, (BLOCK_ROWS, frames.shape[1]), jnp.float32)
    rows = (rows * jnp.sqrt(2.0 / jnp.sum(rows**2, axis=1, keepdims=True))).astype(frames.dtype)
    frames = jax.lax.dynamic_update_slice(frames, rows, (start, 0))
    return frames, jax.lax.dynamic_update_slice(norms, sdtw.squared_lengths(rows), (start,))


def trajectory_lengths(rows: int) -> np.ndarray:
    """int [C], each from SHORTEST to LONGEST but for the last, which takes the rest."""
    drawn = np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, rows // SHORTEST + 1)
    count = int(np.searchsorted(np.cumsum(drawn), rows))
    return np.append(drawn[:count], rows - drawn[:count].sum())


def make_queries(window: Window, count: int) -> jax.Array:
    """float32 [Q, M, D]: pieces of stored trajectories, every fifth step over two frames, with noise of half the
    signal."""
    offsets, lengths = np.asarray(window.layout.offsets), np.asarray(window.layout.lengths)
    steps = np.cumsum([0, *(2 if i % 5 == 4 else 1 for i in range(QUERY_FRAMES - 1))])
    rng = np.random.default_rng(1)
    chosen = rng.choice(len(lengths) - 1, count, replace=len(lengths) <= count)
    first = [int(offsets[c] + rng.integers(0, lengths[c] - steps[-1])) for c in chosen]
    pieces = window.frames[np.array([start + steps for start in first])].astype(jnp.float32)
    noise = jax.random.normal(jax.random.key(2), pieces.shape) * (0.5 * (2 / pieces.shape[-1]) ** 0.5)
    return pieces + noise


def search(window: Window, queries: jax.Array) -> tuple[jax.Array, Alignment]:
    """The top-K trajectories of each query, with intervals."""
    return _search(window, queries, min(TOP_K, len(window.layout.lengths)))


@functools.partial(jax.jit, static_argnames="k")
def _search(window: Window, queries: jax.Array, k: int) -> tuple[jax.Array, Alignment]:
    counts = jnp.full(len(queries), QUERY_FRAMES, jnp.int32)
    return sdtw.nearest(sdtw.align(queries, counts, *window, longest=LONGEST), k)


def check(window: Window, queries: jax.Array) -> int:
    """Compare with float64: the first query's matches, the best match of a few others. Raises AssertionError."""
    rows, found = jax.tree.map(np.asarray, search(window, queries))
    wanted = [(0, rank) for rank in range(rows.shape[1])] + [(query, 0) for query in range(1, min(4, len(queries)))]
    for query, rank in wanted:
        start, length = (int(part[rows[query, rank]]) for part in window.layout)
        stored = np.asarray(window.frames[start : start + length].astype(jnp.float32))
        asked = np.asarray(queries[query].astype(window.frames.dtype).astype(jnp.float32))
        answer = best_interval(distances64(asked, stored))
        got = (float(found.cost[query, rank]), int(found.left[query, rank]), int(found.right[query, rank]))
        wrong = disagreement(got, answer)
        assert not wrong, f"query {query}, match {rank}: {wrong}"
    return len(wanted)


def measure(window: Window, queries: jax.Array, repeats: int) -> list[Figure]:
    read_ms = best_ms(lambda: _sum(window.frames), repeats)
    one, many = queries[:1], queries
    figures = [Figure("window read once (sum)", window.frames.nbytes / read_ms / 1e6, "GB/s")]
    figures += one_query(window, one, read_ms, repeats)
    figures += many_queries(window, many, read_ms, repeats)
    for name, asked in (("1 query", one), (f"{len(many)} queries", many)):
        figures += [Figure(f"queued, {name}: {part}", ms, "ms") for part, ms in parts(window, asked, repeats)]
    return figures


def one_query(window: Window, query: jax.Array, read_ms: float, repeats: int) -> list[Figure]:
    """From the device, against the target; and from the host, as an embedder hands it over."""
    ms = best_ms(lambda: search(window, query), repeats)
    on_host: Any = np.asarray(query)
    host_ms = best_ms(lambda: jax.tree.map(np.asarray, search(window, on_host)), repeats)
    what = f"{QUERY_FRAMES} frames against {window.frames.shape[0]} x {window.frames.shape[1]} {window.frames.dtype}"
    return [
        Figure(f"1 query of {what}, top {TOP_K}, best of {repeats}", ms, "ms", "", "reading once", read_ms),
        Figure("1 query over one reading", ms / read_ms, "x", _target(window, ONE_TARGET), "reading once", 1.0),
        Figure("1 query from host memory and back", host_ms, "ms", "", "reading once", read_ms),
    ]


def many_queries(window: Window, queries: jax.Array, read_ms: float, repeats: int) -> list[Figure]:
    rate = matrix_rate(4096 if window.frames.nbytes >= FULL_WINDOW_BYTES else 512, window.frames.dtype, repeats)
    arithmetic_ms = 1e3 * 2 * queries.shape[0] * QUERY_FRAMES * window.frames.size / rate
    ms, floor_ms = best_ms(lambda: search(window, queries), repeats), max(read_ms, arithmetic_ms)
    name, peer = f"{len(queries)} queries", "larger of reading and arithmetic"
    return [
        Figure("matrix products", rate / 1e12, "TFLOP/s"),
        Figure(f"{name}, best of {repeats}", ms, "ms", "", peer, floor_ms),
        Figure(f"{name} over that", ms / floor_ms, "x", _target(window, MANY_TARGET), peer, 1.0),
    ]


def _target(window: Window, bound: str) -> str:
    full = window.frames.nbytes >= FULL_WINDOW_BYTES and jax.default_backend() != "cpu"
    return bound if full else ""


def matrix_rate(size: int, dtype: Any, repeats: int) -> float:
    """FLOP/s of square products."""
    square = jax.random.normal(jax.random.key(3), (2 * size, 2 * size)).astype(dtype)
    product = jax.jit(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32))
    return 2 * (2 * size) ** 3 / (1e-3 * queued_ms(lambda: product(square), repeats))


def parts(window: Window, queries: jax.Array, repeats: int) -> list[tuple[str, float]]:
    """Milliseconds of each part alone, and of other ways to compute it."""
    counts = jnp.full(len(queries), QUERY_FRAMES, jnp.int32)
    frames, norms, places, layout = window
    rows = queries.reshape(-1, queries.shape[-1]).astype(frames.dtype)
    padded = jnp.pad(rows, ((0, -len(rows) % 32), (0, 0)))
    dots = jax.jit(sdtw.products)
    turned = jax.jit(lambda a, b: jnp.einsum("fd,rd->fr", b, a, preferred_element_type=jnp.float32))
    table = sdtw.distances(queries, frames, norms)
    total, first = jax.jit(sdtw.cheapest_paths)(table, counts, places)
    ends = jax.jit(functools.partial(sdtw.best_ends, longest=LONGEST))
    found = ends(total, first, counts, layout)
    k = min(TOP_K, len(layout.lengths))
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("reading (sum of all)", lambda: _sum(frames)),
        ("matrix product", lambda: dots(rows, frames)),
        (f"matrix product padded to {len(padded)} rows", lambda: dots(padded, frames)),
        ("matrix product, turned", lambda: turned(rows, frames)),
        ("matrix product padded, turned", lambda: turned(padded, frames)),
        ("distances (product, norms, root)", lambda: sdtw.distances(queries, frames, norms)),
        *(_paths(table, counts, places, unroll) for unroll in (1, 2, 5, True)),
        ("best ends", lambda: ends(total, first, counts, layout)),
        ("top-k", lambda: sdtw.nearest(found, k)),
        ("everything", lambda: search(window, queries)),
    ]
    if jax.default_backend() == "cpu":
        calls = [call for call in calls if "unrolled whole" not in call[0]]  # minutes of compilation
    return [(name, queued_ms(call, repeats)) for name, call in calls]


def _paths(table: jax.Array, counts: jax.Array, places: jax.Array, unroll: int | bool) -> tuple[str, Callable[[], Any]]:
    advance = jax.jit(lambda table: sdtw.cheapest_paths(table, counts, places, unroll))
    return f"paths, unrolled {'whole' if unroll is True else unroll}", lambda: advance(table)


_sum = jax.jit(lambda frames: jnp.sum(frames, dtype=jnp.float32))


def best_ms(call: Callable[[], Any], repeats: int) -> float:
    return 1e3 * float(call_times_s(call, repeats).min())


def queued_ms(call: Callable[[], Any], repeats: int) -> float:
    """Per call, of calls in a row of which only the last is waited for; best of three rows."""
    jax.block_until_ready(call())
    times = []
    for _ in range(3):
        start_s = time.perf_counter()
        jax.block_until_ready([call() for _ in range(repeats)][-1])
        times.append(time.perf_counter() - start_s)
    return 1e3 * min(times) / repeats


if __name__ == "__main__":
    raise SystemExit(main())
