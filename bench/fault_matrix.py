"""Every way to break a fleet, counted by the ghosts' own ledgers and a final census.

    python -m bench.fault_matrix [--quick] [--robots=96] [--injections=20] [--rows=sigkill,oom] [--keep=FOLDER]

Ghost robots (recorded episodes, a stub policy of 30 ms a batch, re-planning twice a second, clock factor 1) on the
real bus, stores and supervisor. One fleet goes through all rows; a lost or doubled episode counts for the row in whose
time its ghost got the label. The learner's rows run on a fleet of their own with the nano policy and its training. Four
robots with real physics in real time, answered by the nano policy that is trained meanwhile, go through rows of theirs.
Needs root for the rows `spool_full`, `store_full` (tmpfs) and `oom` (cgroup); what cannot run here says `not run`.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bench import fault_matrix_network, report
from bench.fault_matrix_fleet import GhostFleet, pause
from bench.fault_matrix_rows import LEARNER_ROWS, PHYSICAL_ROWS, ROWS, Injection, Row
from cel_jax.robots.ghost_census import Census, take_census
from cel_jax.robots.ghost_ledger import read_ledgers

NAME = "fault_matrix"
SETTLE_S = 1.5
TRAINS = (
    "--config.replay.min_frames=300", "--config.train.batch_size=16", "--config.train.compute_dtype=float32",
    "--config.train.checkpoint_interval_steps=4", "--config.train.sync_interval_steps=4",
)  # fmt: skip
PHYSICAL = (
    "--config.fleet.robots_are=bench.physical_robots:make", "--config.fleet.real_time=True", "--config.fleet.stores=2",
    *TRAINS,
)  # fmt: skip
COLUMNS = (
    "row", "injections", "others stopped", "lost", "duplicated", "stale actions", "rejoin s (median)", "rejoin s (max)",
    "others' longest pause s", "cause shown",
)  # fmt: skip


@dataclasses.dataclass
class Result:
    """One row. window_s: monotonic begin and end, by which the census is attributed."""

    name: str
    what: str
    window_s: tuple[float, float] = (0.0, 0.0)
    rejoin_s: list[float] = dataclasses.field(default_factory=list)
    others_stopped: int = 0
    longest_pause_s: float = 0.0
    causes: list[str] = dataclasses.field(default_factory=list)
    lost: int = 0
    duplicated: int = 0
    stale: int | None = 0  # None: its robots cannot tell
    problem: str = ""

    @property
    def cause_shown(self) -> str:
        if not self.causes:
            return "-"
        shown = sum(bool(cause) for cause in self.causes)
        return f"{shown}/{len(self.causes)}: {next(filter(None, self.causes), '')[:70]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--robots", type=int, default=0, help="default 96, 8 with --quick")
    parser.add_argument("--injections", type=int, default=0, help="of each row; default 20, 1 with --quick")
    parser.add_argument("--rows", default="", help="comma-separated names; default all")
    parser.add_argument("--seed", type=int, default=0)
    report.add_keep(parser)
    flags = parser.parse_args(argv)
    robots, injections = flags.robots or (8 if flags.quick else 96), flags.injections or (1 if flags.quick else 20)
    wanted = set(filter(None, flags.rows.split(",")))
    with report.run_folder(flags.keep) as folder:
        results = measure(folder, robots, injections, wanted, flags.seed, quick=flags.quick)
    print(table(results), flush=True)
    if not wanted:  # a part of the table must not replace the whole
        _write(results, report.command(NAME, argv))
    return 0


def measure(
    folder: Path, robots: int, injections: int, wanted: set[str], seed: int, *, quick: bool = True
) -> list[Result]:
    """All wanted rows: the ghosts' fleet, then the learner's."""
    results = _fleet(folder, "ghosts", ROWS, robots, injections, wanted, seed, quick, ())
    learner = ("--config.fleet.learner=True", "--config.fleet.stores=2", "--config.fleet.inference_workers=1", *TRAINS)
    results += _fleet(folder, "learner", LEARNER_ROWS, 4, injections, wanted, seed, quick, learner)
    results += _fleet(
        folder, "physical", PHYSICAL_ROWS, 4, injections, wanted, seed, quick, PHYSICAL, "phone_packaging_state"
    )
    return results + _network(folder, robots, injections, wanted, seed, quick)


def _network(folder: Path, robots: int, injections: int, wanted: set[str], seed: int, quick: bool) -> list[Result]:
    """The rows that need a network: two nodes that joined by TCP."""
    missing = [Result(name, what, problem="not run") for name, what in fault_matrix_network.NAMES.items()]
    if wanted and not wanted & set(fault_matrix_network.NAMES):
        return missing
    if not fault_matrix_network.possible():
        return missing
    fleet, network = fault_matrix_network.start(folder, min(robots, 8), _short(quick))
    try:
        chosen = [row for row in fault_matrix_network.rows(network) if not wanted or row.name in wanted]
        rng = random.Random(seed)
        results = [_row(fleet, row, injections, rng, quick) for row in chosen]
        network.leave()
        fleet.stop()
    finally:
        network.close()
        fleet.close()
    attribute(results, (fleet.run_dir, *fleet.joined.values()), take_census(fleet.run_dir, *fleet.joined.values()))
    return results


def _short(quick: bool) -> tuple[str, ...]:
    return ("--config.ghost.frames=150", "--config.ghost.tapes=4") if quick else ()


def _fleet(
    folder: Path, name: str, rows: Sequence[Row], robots: int, injections: int, wanted: set[str], seed: int,
    quick: bool, more: Sequence[str], config: str = "ghosts",
) -> list[Result]:  # fmt: skip
    chosen = [row for row in rows if not wanted or row.name in wanted]
    if not chosen:
        return []
    fleet = GhostFleet(folder, name, robots, "--config.fleet.nodes=2", *_short(quick), *more, config=config)
    try:
        for row in chosen:
            row.prepare(fleet)
        fleet.wait_all_acting()
        rng = random.Random(seed)
        results = [_row(fleet, row, injections, rng, quick) for row in chosen]
        fleet.stop()
    finally:
        fleet.close()
    attribute(results, (fleet.run_dir,), take_census(fleet.run_dir))
    return results


def _row(fleet: GhostFleet, row: Row, injections: int, rng: random.Random, quick: bool) -> Result:
    result, start_s = Result(row.name, row.what, stale=0 if row.marked else None), time.monotonic()
    print(f"{row.name}: {row.what}", flush=True)
    try:
        for _ in range(injections):
            _inject(fleet, row.inject(fleet, rng, quick), result)
    except (TimeoutError, OSError) as error:
        result.problem = f"{type(error).__name__}: {error}".splitlines()[0]
    result.window_s = (start_s, time.monotonic())
    return result


def _inject(fleet: GhostFleet, injection: Injection, result: Result) -> None:
    """One injection: how long until the victim is back, and what it did to the others."""
    start_s = injection.time_s
    fleet.wait(injection.rejoined, f"return after {result.name}", 180.0)
    result.rejoin_s.append(time.monotonic() - start_s)
    injection.clean_up()
    pause(SETTLE_S)
    for station, worker in injection.causes:
        result.causes.append(fleet.cause(station, worker))
    for station in set(fleet.stations) - set(injection.victims):
        result.others_stopped += bool(fleet.since(station, start_s, "connect")) or abandoned(
            fleet.since(station, start_s, "reset", "labelled", "verdict")
        )
        pauses = [fact["seconds"] for fact in fleet.since(station, start_s, "pause")]
        result.longest_pause_s = max(result.longest_pause_s, *pauses, 0.0)


def abandoned(facts: Sequence[dict]) -> bool:
    """Whether an episode began after one that never got its label."""
    kinds = [fact["fact"] for fact in facts]
    return any(first == "reset" and then == "reset" for first, then in pairwise(kinds))


def attribute(results: Sequence[Result], run_dirs: Sequence[Path], census: Census) -> None:
    """Puts what the census found to the rows, by the time of the label or the action."""
    ledgers = {station: facts for folder in run_dirs for station, facts in read_ledgers(folder).items()}
    labelled = {f["episode"]: f["time_s"] for facts in ledgers.values() for f in facts if f["fact"] == "labelled"}
    stale_s = [f["time_s"] for facts in ledgers.values() for f in facts if f["fact"] == "stale"]
    last_s = results[-1].window_s[1] if results else 0.0
    for index, result in enumerate(results):
        begin_s = 0.0 if index == 0 else result.window_s[0]
        end_s = results[index + 1].window_s[0] if index + 1 < len(results) else last_s + 1e9
        inside = lambda at_s, low=begin_s, high=end_s: low <= at_s < high  # noqa: E731
        result.lost = sum(inside(labelled[id]) for id in census.lost)
        result.duplicated = sum(inside(labelled.get(id, 0.0)) for id in census.duplicated)
        result.stale = None if result.stale is None else sum(map(inside, stale_s))
    found = f"{census.labelled} labelled, {census.held} held, {len(census.lost)} lost, {len(census.duplicated)} doubled"
    odd = f"{len(census.altered)} altered, {len(census.unknown)} unknown, {len(census.unreadable)} unreadable"
    print(f"census of {run_dirs[0].name}: {found}, {census.stale} stale actions, {odd}", flush=True)


def table(results: Sequence[Result]) -> str:
    """Aligned columns; a row that was not run has no figures."""
    lines = [COLUMNS, *(_cells(result) for result in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cells(result: Result) -> tuple[str, ...]:
    if not result.rejoin_s:
        return (result.name, result.problem or "not run", *[""] * (len(COLUMNS) - 2))
    done = f"{len(result.rejoin_s)}" + (f" ({result.problem})" if result.problem else "")
    pause_s = f"{result.longest_pause_s:.1f}" if result.longest_pause_s else "< 1"
    stale = "-" if result.stale is None else result.stale
    counts = map(str, (result.others_stopped, result.lost, result.duplicated, stale))
    times = f"{statistics.median(result.rejoin_s):.2f}", f"{max(result.rejoin_s):.2f}"
    return (result.name, done, *counts, *times, pause_s, result.cause_shown)


def _write(results: Sequence[Result], command: str) -> None:
    report.RESULTS.mkdir(exist_ok=True)
    rows = [dataclasses.asdict(result) for result in results]
    whole = {"machine": report.machine(), "command": command, "rows": rows}
    (report.RESULTS / f"{NAME}.json").write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
