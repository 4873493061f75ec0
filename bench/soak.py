"""A long run of ghosts without any fault: does memory grow, do file descriptors leak?

    python -m bench.soak [--quick] [--robots=96] [--minutes=22] [--keep=FOLDER]

Every few seconds the resident memory and the open file descriptors of every process of the fleet are read from /proc.
After the first quarter a line is fitted to the memory of each role: to the means of 20 stretches, since neighbouring
samples are not independent. A leak is a slope whose 95 % interval lies above 0.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench import report
from bench.fault_matrix_fleet import GhostFleet, pause
from bench.report import Figure
from cel_jax.robots.ghost_census import Census, take_census

NAME = "soak"
EVERY_S = 3.0
STRETCHES = 20
T_95 = 2.101  # Student's t, 18 degrees of freedom
EPISODES = 2000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True)
class Sample:
    """At one moment, by role: resident bytes and file descriptors of all its processes."""

    time_s: float
    rss_bytes: dict[str, int]
    descriptors: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Slope:
    """Bytes a second with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        return self.low > 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--robots", type=int, default=0, help="default 96, 8 with --quick")
    parser.add_argument("--minutes", type=float, default=0.0, help="default 22, 1.5 with --quick")
    report.add_keep(parser)
    flags = parser.parse_args(argv)
    robots, minutes = flags.robots or (8 if flags.quick else 96), flags.minutes or (1.5 if flags.quick else 22.0)
    with report.run_folder(flags.keep) as folder:
        samples, census = run_soak(folder, robots, minutes)
    report.write(NAME, figures(samples, census, flags.quick), report.command(NAME, argv))
    return 0


def run_soak(folder: Path, robots: int, minutes: float) -> tuple[list[Sample], Census]:
    """Samples from the moment at which every robot acts."""
    fleet = GhostFleet(folder, "soak", robots)
    samples: list[Sample] = []
    try:
        fleet.wait_all_acting(600.0)
        ends_s = time.monotonic() + 60 * minutes
        while time.monotonic() < ends_s:
            fleet.wait(lambda: True, "next sample")  # raises where the fleet ended
            samples.append(take_sample(processes(fleet)))
            pause(EVERY_S)
        fleet.stop()
    finally:
        fleet.close()
    (folder / "soak_samples.json").write_text(json.dumps([dataclasses.asdict(one) for one in samples]))
    return samples, take_census(fleet.run_dir)


def processes(fleet: GhostFleet) -> dict[str, list[int]]:
    """Role -> its process ids; the launcher, controller and agents are `control`."""
    control = [fleet.process.pid, fleet.child_pid("controller"), fleet.child_pid("local")]
    found: dict[str, list[int]] = {"control": [pid for pid in control if pid]}
    for row in fleet.rows("SELECT role, pid FROM stations WHERE pid > 0"):
        found.setdefault(row["role"], []).append(int(row["pid"]))
    return found


def take_sample(pids: dict[str, list[int]]) -> Sample:
    """Reads /proc. Raises FileNotFoundError where a process is gone: nothing may end in a soak."""
    rss = {role: sum(map(_rss_bytes, mine)) for role, mine in pids.items()}
    descriptors = {role: sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in mine) for role, mine in pids.items()}
    return Sample(time.monotonic(), rss, descriptors)


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def settled(samples: Sequence[Sample]) -> list[Sample]:
    """Those after the first quarter of the time."""
    begin_s = samples[0].time_s + (samples[-1].time_s - samples[0].time_s) / 4
    return [one for one in samples if one.time_s >= begin_s]


def slope(times_s: np.ndarray, values: np.ndarray) -> Slope:
    """A line through the means of STRETCHES stretches. Raises ValueError for fewer samples than that."""
    if len(times_s) < STRETCHES:
        raise ValueError(f"soak: {len(times_s)} samples, {STRETCHES} are needed; run longer")
    t = np.array([part.mean() for part in np.array_split(times_s, STRETCHES)])
    v = np.array([part.mean() for part in np.array_split(values.astype(float), STRETCHES)])
    centred = t - t.mean()
    value = float(centred @ v / (centred @ centred))
    left = v - v.mean() - value * centred
    half = T_95 * math.sqrt(float(left @ left) / (STRETCHES - 2) / float(centred @ centred))
    return Slope(value, value - half, value + half)


def figures(samples: Sequence[Sample], census: Census, quick: bool) -> list[Figure]:
    kept = settled(samples)
    times_s = np.array([one.time_s for one in kept])
    roles = sorted(kept[-1].rss_bytes)
    made = [
        Figure("wall time", (samples[-1].time_s - samples[0].time_s) / 60, "min", "" if quick else ">= 20"),
        Figure("labelled episodes", census.labelled, "", "" if quick else f">= {EPISODES}"),
        Figure("lost, doubled, altered, stale", _wrong(census), "", "<= 0"),
    ]
    for role in [*roles, "all"]:
        names = roles if role == "all" else [role]
        memory = np.array([sum(one.rss_bytes[name] for name in names) for one in kept])
        made += _memory(role, slope(times_s, memory), float(memory[-1]))
    begin, over = descriptors(kept)
    made.append(Figure("file descriptors in the end (median of a stretch)", over, ""))
    made.append(Figure("more of them than after the first quarter", over - begin, "", "<= 0"))
    return made


def descriptors(samples: Sequence[Sample]) -> tuple[float, float]:
    """Medians of the first and the last stretch: a database that is open for a moment is no leak."""
    counts = np.array([sum(one.descriptors.values()) for one in samples])
    parts = np.array_split(counts, STRETCHES // 4)
    return float(np.median(parts[0])), float(np.median(parts[-1]))


def _memory(role: str, found: Slope, last_bytes: float) -> list[Figure]:
    """The lower end of the interval in KB a minute: above 0, memory grows."""
    per_min = 60 / 1e3
    words = f"{role}: slope {found.value * per_min:+.1f} KB/min, 95 % up to {found.high * per_min:+.1f}, from"
    return [
        Figure(f"{role}: resident memory", last_bytes / 1e6, "MB"),
        Figure(words, found.low * per_min, "KB/min", "<= 0"),
    ]


def _wrong(census: Census) -> int:
    return len(census.lost) + len(census.duplicated) + len(census.altered) + census.stale


if __name__ == "__main__":
    raise SystemExit(main())
