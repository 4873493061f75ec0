"""Priorities and draws at the paper's window: does an event's time grow with the table, and how long is a batch.

    python -m bench.priorities [--quick]        (the peer needs flashbax: pip install flashbax; else only ours)

State mode, horizon 30, 16 state and action numbers. Chunks of 3,500-frame episodes; an event has ten intervals of 150
frames. A batch is 1,024 chunks, drawn by priority, gathered, without decoding; flashbax's prioritised trajectory buffer
holds the same frames and gives the same sequences, jitted, at exponent 1.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench import report
from bench.replay_tables import make_episode
from bench.report import Figure
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.priorities import Interval, Priorities

NAME = "priorities"
HORIZON, NUMBERS, BATCH, RHO = 30, 16, 1024, 0.88
EPISODE_FRAMES, RETRIEVED, INTERVAL_FRAMES, W_INIT = 3500, 10, 150, 0.5
EVENTS = 100  # one fewer than what leads to the first rescaling, with the warm-up
SMALL, LARGE = 35_000, 350_000
SAMPLE_TARGET, GROWTH_TARGET, PEER_TARGET = "<= 1", "<= 1.5", ">= 1"


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--batches", type=int, default=200)
    flags = parser.parse_args(argv)
    batches = min(flags.batches, 20) if flags.quick else flags.batches
    report.write(NAME, measure(batches), report.command(NAME, argv))
    return 0


def measure(batches: int) -> list[Figure]:
    rng = np.random.default_rng(0)
    small, large = (filled(chunks, rng) for chunks in (SMALL, LARGE))
    event_ms = {chunks: time_events(*made, rng) for chunks, made in ((SMALL, small), (LARGE, large))}
    sample_ms = median_ms(lambda seed: large[0].sample(BATCH, seed), batches)
    made = [Figure(f"event on {chunks} chunks, median", ms, "ms") for chunks, ms in event_ms.items()]
    growth = event_ms[LARGE] / event_ms[SMALL]
    made.append(Figure("event, 350,000 over 35,000 chunks", growth, "x", GROWTH_TARGET, "independent of size", 1.0))
    made.append(Figure(f"memory table, {BATCH} of {LARGE}, median", sample_ms, "ms", SAMPLE_TARGET))
    return made + peer_figures(sample_ms, batches)


def filled(chunks: int, rng: np.random.Generator) -> tuple[MemoryTable, Priorities]:
    table, priorities = MemoryTable(HORIZON), Priorities(HORIZON)
    template = make_episode(0, rng, EPISODE_FRAMES, objects=False)
    for number in range(chunks // EPISODE_FRAMES):
        header = dataclasses.replace(template.header, id=f"e{number}")
        starts = np.arange(EPISODE_FRAMES, dtype=np.int32)
        stored = priorities.add_episode(header.id, starts, EPISODE_FRAMES, W_INIT)
        table.insert_episode(dataclasses.replace(template, header=header), starts, stored)
    return table, priorities


def time_events(table: MemoryTable, priorities: Priorities, rng: np.random.Generator) -> float:
    """Milliseconds from the search's intervals to a table that draws by the new weights (one draw is made)."""
    names = priorities.episodes

    def event(number: int) -> None:
        picked = rng.permutation(len(names))[:RETRIEVED]
        lefts = rng.integers(0, EPISODE_FRAMES - INTERVAL_FRAMES, RETRIEVED).tolist()
        found = [Interval(names[i], left, left + INTERVAL_FRAMES) for i, left in zip(picked, lefts, strict=True)]
        table.set_weights(priorities.apply(number + 1, f"f{number}", RHO, found))
        table.sample(1, number)

    return median_ms(event, EVENTS)


def peer_figures(ours_ms: float, batches: int) -> list[Figure]:
    if importlib.util.find_spec("flashbax") is None:
        print("flashbax is not installed: no peer; pip install flashbax, here or in PYTHONPATH", flush=True)
        return []
    peer_ms = median_ms(flashbax_sampler(), batches)
    name = "flashbax prioritised buffer"
    return [Figure("batches faster than flashbax", peer_ms / ours_ms, "x", PEER_TARGET, name, peer_ms)]


def flashbax_sampler() -> Callable[[int], Any]:
    """Its buffer of LARGE frames with random priorities; a call draws a batch and waits for it."""
    import flashbax
    import jax
    import jax.numpy as jnp

    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=BATCH,
        sample_sequence_length=HORIZON,
        period=1,
        min_length_time_axis=HORIZON,
        max_length_time_axis=LARGE,
        priority_exponent=1.0,
    )
    one = {name: jnp.zeros(NUMBERS, jnp.float32) for name in ("state", "action")}
    part = {name: jnp.ones((1, EPISODE_FRAMES, NUMBERS), jnp.float32) for name in one}
    state, add = buffer.init(one), jax.jit(buffer.add, donate_argnums=0)
    for _ in range(LARGE // EPISODE_FRAMES):
        state = add(state, part)
    places = jnp.arange(LARGE - HORIZON)
    state = jax.jit(buffer.set_priorities, donate_argnums=0)(
        state, places, jax.random.uniform(jax.random.key(0), places.shape)
    )
    sample = jax.jit(buffer.sample)
    return lambda seed: jax.block_until_ready(sample(state, jax.random.key(seed)))


def median_ms(call: Callable[[int], Any], repeats: int) -> float:
    """Of calls with the numbers 1 to `repeats`, after one that warms."""
    call(0)
    taken = []
    for number in range(1, repeats + 1):
        start_s = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - start_s)
    return 1e3 * float(np.median(taken))


if __name__ == "__main__":
    raise SystemExit(main())
