"""How fast a replay table takes episodes, changes weights and gives batches.

    .venv/bin/python -m bench.replay_tables memory
    .venv-reverb/bin/python -m bench.replay_tables reverb

State mode (8 objects of 9 numbers, 16 state and action dimensions), horizon 30, batches of 128, 100,000 chunks in
episodes of 500 frames. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

import numpy as np

from cel_jax.data.episode import Episode, EpisodeHeader, Label, Outcome
from cel_jax.replay.chunks import chunk_starts
from cel_jax.replay.priorities import Interval, Priorities
from cel_jax.replay.table import make_table

HORIZON, FRAMES, BATCH = 30, 500, 128


def make_episode(number: int, rng: np.random.Generator) -> Episode:
    header = EpisodeHeader(f"e{number}", "station", "worker", "robot", "", "task", "prompt", 30.0, 0.0)
    return Episode(
        header, Label(Outcome.SUCCESS, "bench", 0.0), rng.normal(size=(FRAMES, 16)).astype(np.float32),
        rng.normal(size=(FRAMES, 16)).astype(np.float32), np.zeros(0, np.int32), {},
        rng.normal(size=(FRAMES, 8, 9)).astype(np.float32), np.zeros(FRAMES, np.int64), np.zeros(FRAMES, np.uint8),
        np.zeros(FRAMES, np.bool_), np.full(FRAMES, -1, np.int16), np.arange(FRAMES) / 30.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["memory", "reverb"])
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=100)
    flags = parser.parse_args()
    rng, table, priorities = np.random.default_rng(0), make_table(flags.table, HORIZON), Priorities(HORIZON)
    episodes = [make_episode(i, rng) for i in range(flags.chunks // FRAMES)]

    start = time.perf_counter()
    for episode in episodes:
        starts = chunk_starts(episode, HORIZON)
        table.insert_episode(episode, starts, priorities.add_episode(episode.header.id, starts, FRAMES, 0.5))
    insert_s = time.perf_counter() - start

    event_s = []
    for number in range(120):  # one of them rescales every weight
        picked = rng.choice(len(episodes), 10, replace=False)
        intervals = [Interval(f"e{i}", left, left + 150) for i in picked for left in [int(rng.integers(0, 350))]]
        start = time.perf_counter()
        table.set_weights(priorities.apply(number, f"f{number}", 0.88, intervals))
        event_s.append(time.perf_counter() - start)

    table.sample(BATCH, 0)
    start = time.perf_counter()
    for seed in range(flags.batches):
        table.sample(BATCH, seed)
    sample_s = time.perf_counter() - start
    print(json.dumps({
        "table": flags.table, "chunks": table.chunks, "cores": os.cpu_count(),
        "inserted_chunks_per_s": round(table.chunks / insert_s),
        "batches_of_128_per_s": round(flags.batches / sample_s, 1),
        "event_median_ms": round(1e3 * float(np.median(event_s)), 2), "rescale_ms": round(1e3 * max(event_s), 1),
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))
    table.close()


if __name__ == "__main__":
    main()
