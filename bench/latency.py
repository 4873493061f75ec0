"""Latency of an observation: with episodes streaming over without, and against other libraries over loopback TCP.

    python -m bench.latency [--quick] [--peer_python=PATH]

Streaming: 8 robots ask 20 times a second each (80 robots that execute 15 frames of a chunk at 30 Hz ask as often); each
records and delivers an episode of 3 MB every 4 s in the same process, as the environment worker does: 6 MB/s together.
Blocks of `--block_s` with and without it alternate. At the end of a block at most one episode for each robot may be
left in the spools: they are emptied as fast as they are filled.
Peers: agentlace and gRPC in an environment of their own, given by --peer_python (default: .venv-peers); those that are
not there are named and left out. Same payload of 0.45 MB, every byte checksummed on receipt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench import report
from bench.latency_round_trip import ours, peers
from bench.latency_streaming import Load, Shared, collect, running
from bench.report import Figure

NAME = "latency"
GUARD_S = 0.5  # at a block's begin: what the block before it left on the way
SAMPLES = 10_000
ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--block_s", type=float, default=5.0)
    parser.add_argument("--samples", type=int, default=0, help="of each kind; default 10,000, 600 with --quick")
    parser.add_argument("--peer_python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--robots", type=int, default=8)
    flags = parser.parse_args(argv)
    load, samples = Load(robots=flags.robots), flags.samples or (600 if flags.quick else SAMPLES)
    made = streaming_figures(load, flags.block_s, samples)
    count, seconds = (200, 1.0) if flags.quick else (2000, 5.0)
    rows = [ours(False, count, seconds), ours(True, count, seconds), *peers(flags.peer_python, count, seconds)]
    report.write(NAME, [*made, *peer_figures(rows)], report.command(NAME, argv))
    return 0


def streaming_figures(load: Load, block_s: float, samples: int) -> list[Figure]:
    """p50 and p99 of both kinds of blocks, and whether the spools kept up."""
    rounds = int(np.ceil(1.1 * samples / (load.robots * load.rate_hz * (block_s - GUARD_S))))
    with running(load) as shared:
        blocks, left = alternate(shared, block_s, rounds)
        stored_mb, filled_mb = shared.stored.value / 1e6, shared.filled.value / 1e6
        taken = collect(shared, load.robots)
    found = [pick(taken, [block for block in blocks if block[2] is kind]) for kind in (False, True)]
    most_mb = load.robots * load.episode_bytes / 1e6
    return [
        *_quantiles(found[0], found[1]),
        Figure("samples of each kind, least", min(map(len, found)), "", f">= {samples}"),
        Figure("episodes labelled while streaming", filled_mb, "MB"),
        Figure("episodes stored meanwhile", stored_mb, "MB"),
        Figure("most that was left in the spools at a block's end", max(left) / 1e6, "MB", f"<= {most_mb:g}"),
    ]


Block = tuple[float, float, bool]  # begin and end (monotonic), streaming or not


def alternate(shared: Shared, block_s: float, rounds: int) -> tuple[list[Block], list[int]]:
    """Blocks without and with streaming in turn, and the bytes in all spools at the end of each with it."""
    blocks, left = [], []
    for number in range(2 * rounds):
        streams = bool(number % 2)
        (shared.streaming.set if streams else shared.streaming.clear)()
        if not streams:
            _drain(shared)
        begin_s = time.monotonic() + GUARD_S
        shared.stop.wait(block_s)
        blocks.append((begin_s, time.monotonic(), streams))
        if streams:
            left.append(shared.filled.value - shared.stored.value)
    return blocks, left


def _drain(shared: Shared) -> None:
    """A block without streaming begins when everything labelled is stored."""
    ends_s, still_s, before = time.monotonic() + 60.0, time.monotonic(), (-1, 0)
    while time.monotonic() - still_s < 0.5:  # episodes that were being recorded are still labelled
        now = (shared.filled.value, shared.stored.value)
        if now != before or now[1] < now[0]:
            before, still_s = now, time.monotonic()
        if time.monotonic() > ends_s:
            raise TimeoutError(f"the spools did not drain within 60 s: {now[0] - now[1]} bytes are left")
        shared.stop.wait(0.05)


def pick(taken: np.ndarray, blocks: Sequence[Block]) -> np.ndarray:
    """Durations of the samples that began inside the blocks, seconds."""
    inside = np.zeros(len(taken), bool)
    for begin_s, end_s, _ in blocks:
        inside |= (taken[:, 0] >= begin_s) & (taken[:, 0] < end_s)
    return taken[inside, 1]


def _quantiles(without: np.ndarray, with_it: np.ndarray) -> list[Figure]:
    made = []
    for percent in (50, 99):
        plain_ms, beside_ms = (1e3 * float(np.percentile(times, percent)) for times in (without, with_it))
        target = "<= 1.5" if percent == 99 else ""
        made.append(Figure(f"p{percent} without streaming", plain_ms, "ms"))
        made.append(Figure(f"p{percent} with streaming", beside_ms, "ms", "", "without", plain_ms))
        made.append(Figure(f"p{percent} with over without", beside_ms / plain_ms, "x", target))
    return made


def peer_figures(rows: Sequence[dict]) -> list[Figure]:
    """Every row, and ours over the better peer."""
    made = []
    for row in rows:
        what = f"0.45 MB over TCP, {row['peer']} (encryption: {row['encryption']})"
        made += [Figure(f"{what}: p50", row["p50_ms"], "ms"), Figure(f"{what}: p99", row["p99_ms"], "ms")]
        made.append(Figure(f"{what}: messages", row["messages_s"], "1/s"))
    plain, others = rows[0], rows[2:]
    if others:
        best_ms, best_rate = min(row["p50_ms"] for row in others), max(row["messages_s"] for row in others)
        made.append(Figure("better peer's p50 over ours, plain", best_ms / plain["p50_ms"], "x", ">= 2"))
        made.append(
            Figure("our messages/s, plain, over the better peer's", plain["messages_s"] / best_rate, "x", ">= 2")
        )
    return made


if __name__ == "__main__":
    raise SystemExit(main())
