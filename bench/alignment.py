"""How fast one failure's query is aligned with a window of successes on a processor, beside numba.

    python -m bench.alignment [--quick]       (the peers need numba: pip install numba; else only ours is measured)

The same threads for all: numpy's and numba's libraries take every core, as XLA does. Everything is called once before
it is timed; costs and intervals must agree. The figure of an accelerator is `bench.sdtw_gpu`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from bench import alignment_numba, report
from bench.alignment_reference import DECIDED_MARGIN, best_interval, disagreement, distances64
from bench.report import Figure
from cel_jax.fert.ring import SuccessRing

NAME = "alignment"
PLAIN_TARGET, PRODUCT_TARGET = ">= 5", ">= 1"
PEERS = {"numba, trajectory by trajectory": PLAIN_TARGET, "numpy product + numba": PRODUCT_TARGET}
TOP_K = 10


def main(argv: Sequence[str] | None = None) -> int:
    report.write(NAME, measure(_parse(argv)), report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    for name, value in {"frames": 20_000, "length": 400, "dim": 1024, "query": 30, "repeats": 30}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    flags = parser.parse_args(argv)
    if flags.quick:
        flags.frames, flags.repeats = min(flags.frames, 4000), min(flags.repeats, 5)
    return flags


def measure(flags: argparse.Namespace) -> list[Figure]:
    """Milliseconds of the median call, turn about, so that all meet the same load; and our advantage."""
    trajectories, query = make_problem(flags)
    ring = SuccessRing(flags.dim, 10**12, dtype=jnp.float32, rows=flags.frames)
    for number, trajectory in enumerate(trajectories):
        ring.add(f"{number:06d}", trajectory, len(trajectory))
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: ring.nearest(query[None], [len(query)], TOP_K)}
    if alignment_numba.is_installed():
        calls |= peers(query, trajectories)
        check(ring, query, trajectories, [calls[name]() for name in PEERS])
    else:
        print("numba is not installed: no peers; pip install numba, in this environment or in PYTHONPATH", flush=True)
    what = f"{flags.query} frames against {flags.frames} x {flags.dim} float32"
    return figures(what, median_ms(calls, flags.repeats))


def make_problem(flags: argparse.Namespace) -> tuple[list[np.ndarray], np.ndarray]:
    """Random trajectories, each frame of length sqrt(2), and a noisy piece of one of them."""
    rng, shape = np.random.default_rng(0), (flags.frames // flags.length, flags.length, flags.dim)
    frames = rng.normal(size=shape).astype(np.float32)
    frames *= np.sqrt(2) / np.linalg.norm(frames, axis=-1, keepdims=True)
    piece = frames[len(frames) // 2, flags.length // 2 :][: flags.query]
    noise = 0.3 * np.sqrt(2 / flags.dim) * rng.normal(size=piece.shape)
    return list(frames), piece + noise.astype(np.float32)


def peers(query: np.ndarray, trajectories: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
    lengths = np.array([len(trajectory) for trajectory in trajectories])
    searches = (
        alignment_numba.plain_search(query, trajectories),
        alignment_numba.product_search(query, np.concatenate(trajectories), np.cumsum(lengths) - lengths, lengths),
    )
    return dict(zip(PEERS, searches, strict=True))


def check(ring: SuccessRing, query: np.ndarray, trajectories: list[np.ndarray], others: list[list]) -> None:
    """Ours and the peers' against float64 on the best and a few more. Raises AssertionError."""
    ours = {match.episode_id: (match.cost, match.left, match.right) for match in ring.align(query)}
    best = min(ours, key=lambda name: ours[name][0])
    for number in {int(best), *range(0, len(trajectories), max(1, len(trajectories) // 5))}:
        answer = best_interval(distances64(query, trajectories[number]))
        for found in (ours[f"{number:06d}"], *(other[number] for other in others)):
            wrong = disagreement(found, answer)
            assert not wrong, f"trajectory {number}: {wrong}"
        print(f"trajectory {number}: all agree, decided: {answer.margin > DECIDED_MARGIN}", flush=True)


def median_ms(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start_s = time.perf_counter()
            call()
            if turn:
                taken[name].append(time.perf_counter() - start_s)
    return {name: 1e3 * float(np.median(times)) for name, times in taken.items()}


def figures(what: str, ms: dict[str, float]) -> list[Figure]:
    ours = ms["ours"]
    made = [Figure(f"S-DTW, {what}, top {TOP_K}, median", ours, "ms")]
    for name, target in PEERS.items():
        if name in ms:
            made.append(Figure(f"faster than {name}", ms[name] / ours, "x", target, name, ms[name]))
    return made


if __name__ == "__main__":
    raise SystemExit(main())
