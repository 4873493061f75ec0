"""How fast a replay table takes episodes, changes weights and gives batches: ours in numpy beside DeepMind's Reverb.

    python -m bench.replay_tables [--quick] [--tables=memory,reverb]

State mode (8 objects of 9 numbers, 16 state and action dimensions), horizon 30, batches of 128, 100,000 chunks in
episodes of 500 frames. Each table runs in a process of its own; Reverb's in its environment, where there is one.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench import replay_tables_images, report
from bench.report import Figure
from cel_jax.data.episode import Episode, EpisodeHeader, Label, Outcome
from cel_jax.replay.chunks import chunk_starts
from cel_jax.replay.priorities import Interval, Priorities
from cel_jax.replay.table import ChunkTable, make_table

NAME = "replay_tables"
ROOT = Path(__file__).resolve().parent.parent
HORIZON, FRAMES, BATCH, EVENTS = 30, 500, 128, 120  # one of the events rescales every weight
UNITS = {
    "inserted": "chunks/s",
    "batches of 128": "1/s",
    "retrieval event, median": "ms",
    "rescaling event": "ms",
    "resident": "MB",
}
IMAGE_UNITS = {"drawn": "ms", "decoded": "ms", "rate": "samples/s", "kb": "kB a JPEG"}
IMAGES = "1,024 of three 224 px cameras"
UNITS |= {f"{IMAGES}: {name}": unit for name, unit in IMAGE_UNITS.items()}
DEADLINE_S = 1200.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--tables", default="memory,reverb")
    parser.add_argument("--chunks", type=int, default=0, help="default 100,000; 10,000 with --quick")
    parser.add_argument("--batches", type=int, default=0, help="default 100; 20 with --quick")
    parser.add_argument("--one", default="", help="measure this table in this process and print JSON")
    flags = parser.parse_args(argv)
    chunks = flags.chunks or (10_000 if flags.quick else 100_000)
    batches = flags.batches or (20 if flags.quick else 100)
    if flags.one:
        both = measure(flags.one, chunks, batches), replay_tables_images.measure(flags.one, 2 if flags.quick else 8)
        print(json.dumps({**both[0], **{f"{IMAGES}: {name}": value for name, value in both[1].items()}}))
        return 0
    measured = {name: measure_apart(name, chunks, batches, flags.quick) for name in flags.tables.split(",")}
    found = {name: values for name, values in measured.items() if values}
    report.write(NAME, figures(found, chunks), report.command(NAME, argv))
    return 0


def interpreter(table: str) -> Path | None:
    """The Python that can run a table; None where Reverb's environment is missing."""
    if table != "reverb":
        return Path(sys.executable)
    python = Path(sys.prefix).parent / ".venv-reverb" / "bin" / "python"
    return python if python.exists() else None


def measure_apart(table: str, chunks: int, batches: int, quick: bool = False) -> dict[str, float]:
    """`measure` in a fresh process; {} where the table cannot run here. Raises RuntimeError where it fails."""
    python = interpreter(table)
    if python is None:
        print(f"{table}: skipped, there is no .venv-reverb beside this environment (make setup)", flush=True)
        return {}
    argv = [str(python), "-m", "bench.replay_tables", f"--one={table}", f"--chunks={chunks}", f"--batches={batches}"]
    argv += ["--quick"] if quick else []
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"the {table} table ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    values: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return values


def figures(measured: dict[str, dict[str, float]], chunks: int) -> list[Figure]:
    """Each table's figures, the other table as its peer."""
    made = []
    for table, values in measured.items():
        other = next((name for name in measured if name != table), "")
        for key, value in values.items():
            peer_value = measured[other][key] if other else None
            made.append(Figure(f"{table}, {chunks} chunks: {key}", value, UNITS[key], "", other, peer_value))
    return made


def measure(name: str, chunks: int, batches: int) -> dict[str, float]:
    """Figures of one table by the names of `UNITS`."""
    rng, table, priorities = np.random.default_rng(0), make_table(name, HORIZON), Priorities(HORIZON)
    episodes = [make_episode(i, rng) for i in range(chunks // FRAMES)]
    insert_s = time_inserts(table, priorities, episodes)
    event_s = time_events(table, priorities, len(episodes), rng)
    sample_s = time_samples(table, batches)
    values = (
        table.chunks / insert_s,
        batches / sample_s,
        1e3 * float(np.median(event_s)),
        1e3 * max(event_s),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )
    table.close()
    return dict(zip(list(UNITS)[: len(values)], values, strict=True))


def time_inserts(table: ChunkTable, priorities: Priorities, episodes: Sequence[Episode]) -> float:
    """Seconds to insert all episodes."""
    start_s = time.perf_counter()
    for episode in episodes:
        starts = chunk_starts(episode, HORIZON)
        table.insert_episode(episode, starts, priorities.add_episode(episode.header.id, starts, FRAMES, 0.5))
    return time.perf_counter() - start_s


def time_events(table: ChunkTable, priorities: Priorities, episodes: int, rng: np.random.Generator) -> list[float]:
    """Seconds of each failure event: ten retrieved intervals of 150 frames, every other weight decayed."""
    taken = []
    for number in range(EVENTS):
        picked = rng.choice(episodes, min(10, episodes), replace=False)
        intervals = [Interval(f"e{i}", left, left + 150) for i in picked for left in [int(rng.integers(0, 350))]]
        start_s = time.perf_counter()
        table.set_weights(priorities.apply(number, f"f{number}", 0.88, intervals))
        taken.append(time.perf_counter() - start_s)
    return taken


def time_samples(table: ChunkTable, batches: int) -> float:
    """Seconds of `batches` batches, after one that warms."""
    table.sample(BATCH, 0)
    start_s = time.perf_counter()
    for seed in range(batches):
        table.sample(BATCH, seed)
    return time.perf_counter() - start_s


def make_episode(number: int, rng: np.random.Generator, frames: int = FRAMES, objects: bool = True) -> Episode:
    """A success with random numbers in it."""
    return Episode(
        EpisodeHeader(f"e{number}", "station", "worker", "robot", "", "task", "prompt", 30.0, 0.0),
        Label(Outcome.SUCCESS, "bench", 0.0),
        rng.normal(size=(frames, 16)).astype(np.float32),
        rng.normal(size=(frames, 16)).astype(np.float32),
        np.zeros(0, np.int32),
        {},
        rng.normal(size=(frames, 8, 9)).astype(np.float32) if objects else None,
        np.zeros(frames, np.int64),
        np.zeros(frames, np.uint8),
        np.zeros(frames, np.bool_),
        np.full(frames, -1, np.int16),
        np.arange(frames) / 30.0,
    )


if __name__ == "__main__":
    raise SystemExit(main())
