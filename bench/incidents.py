"""The paper's day of incidents on a fleet of ghosts, on a compressed clock: what it costs beyond the faults themselves.

    python -m bench.incidents [--quick] [--robots=96] [--minutes=10] [--seed=0] [--keep=FOLDER]

30 incidents on 22 robots in 19 events (cel_jax/evaluation/incidents.py), 6.88 h in `--minutes`. Begins and downtimes
are compressed; what the system takes to bring a robot back is not: it is counted in wall time, against the day's 660
robot-hours as the paper counts its losses, and against the robots' wall time, which is the harsher figure. compute: the
worker is killed and its robot cannot be reached; network: the worker is stopped (half-open) and its robot cannot be
reached; hardware: driver, dead or frozen camera; not_ready: as compute. Four robots of one host do not come back.
"""

from __future__ import annotations

import dataclasses
import heapq
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import report
from bench.fault_matrix_fleet import GhostFleet
from bench.report import Figure
from cel_jax.evaluation import containment, trace
from cel_jax.evaluation.incidents import RUN_MIN, PlannedIncident, paper_day
from cel_jax.recovery import rundb, rundb_fleet
from cel_jax.recovery.stations import Desired
from cel_jax.robots.ghost_census import Census, take_census
from cel_jax.robots.ghost_ledger import read_ledgers

NAME = "incidents"
PAPER_PERCENT = 1.3  # of robot time, the incidents' own time included
HARDWARE = ("driver", "dead_camera", "frozen_camera")
SETTLE_S = 45.0  # after the day: the last robots come back


@dataclasses.dataclass
class Injected:
    """One incident as it was carried out; monotonic seconds. resumed_s: the robot's next action, from its ledger."""

    plan: PlannedIncident
    begin_s: float = 0.0
    end_s: float = 0.0
    resumed_s: float | None = None

    @property
    def station(self) -> str:
        return f"robot-{self.plan.robot:02d}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--robots", type=int, default=0, help="default 96, 24 with --quick")
    parser.add_argument("--minutes", type=float, default=0.0, help="default 10, 3 with --quick")
    parser.add_argument("--seed", type=int, default=0)
    report.add_keep(parser)
    flags = parser.parse_args(argv)
    robots, minutes = flags.robots or (24 if flags.quick else 96), flags.minutes or (3.0 if flags.quick else 10.0)
    with report.run_folder(flags.keep) as folder:
        found = figures(*run_day(folder, robots, minutes, flags.seed), robots, minutes)
    report.write(NAME, found, report.command(NAME, argv))
    return 0


def run_day(folder: Path, robots: int, minutes: float, seed: int) -> tuple[list[Injected], Path, Census, float]:
    """The day; returns its incidents, the run's folder, its census and the day's begin (monotonic)."""
    day = [Injected(plan) for plan in paper_day(seed, robots)]
    fleet = GhostFleet(folder, "incidents", robots)
    try:
        fleet.wait_all_acting(600.0)
        start_s = time.monotonic()
        inject(fleet, day, start_s, RUN_MIN / minutes, random.Random(seed))
        fleet.wait(lambda: time.monotonic() > start_s + 60 * minutes, "end of the day", 60 * minutes)
        returning = [one for one in day if one.plan.returns]
        fleet.wait(lambda: all(resumed(fleet, one) for one in returning), "return of every robot", SETTLE_S)
        fleet.stop()
    finally:
        fleet.close()
    return day, fleet.run_dir, take_census(fleet.run_dir), start_s


def inject(fleet: GhostFleet, day: Sequence[Injected], start_s: float, factor: float, rng: random.Random) -> None:
    """Begins and ends every incident at its time."""
    due: list[tuple[float, int, Callable[[], None]]] = []
    for number, one in enumerate(day):
        begin_s = start_s + 60 * one.plan.start_min / factor
        end_s = begin_s + 60 * one.plan.downtime_min / factor
        kind = rng.choice(HARDWARE)
        heapq.heappush(due, (begin_s, 2 * number, lambda one=one, kind=kind: begin(fleet, one, kind)))  # type: ignore[misc]
        heapq.heappush(due, (end_s, 2 * number + 1, lambda one=one: end(fleet, one)))  # type: ignore[misc]
    while due:
        at_s, _, act = heapq.heappop(due)
        fleet.wait(lambda at_s=at_s: time.monotonic() >= at_s, "next incident", 3600.0)  # type: ignore[misc]
        act()


def begin(fleet: GhostFleet, one: Injected, hardware: str) -> None:
    _, pid = fleet.worker(one.station)
    one.begin_s = time.monotonic()
    fleet.fault(one.station, hardware if one.plan.kind == "hardware" else "away")
    number = {"compute": signal.SIGKILL, "not_ready": signal.SIGKILL, "network": signal.SIGSTOP}.get(one.plan.kind)
    print(f"{one.station}: {one.plan.kind}, event {one.plan.event}", flush=True)
    if number is not None and pid:
        os.kill(pid, number)


def end(fleet: GhostFleet, one: Injected) -> None:
    """The cause is gone; a robot that does not return is taken out of the run, as an operator does."""
    if not one.plan.returns:
        db = rundb.open_db(fleet.run_dir)
        rundb_fleet.set_desired(db, one.station, Desired.OFFLINE)
        db.close()
    fleet.fault(one.station, "")
    one.end_s = time.monotonic()


def resumed(fleet: GhostFleet, one: Injected) -> bool:
    acts = fleet.since(one.station, one.end_s, "act")
    one.resumed_s = acts[0]["time_s"] if acts else None
    return bool(acts)


def lost_beyond_s(day: Sequence[Injected], run_dir: Path, start_s: float) -> tuple[list[float], float]:
    """(seconds from each fault's end to the robot's next action, seconds of pauses elsewhere)."""
    delays_s = [one.resumed_s - one.end_s for one in day if one.resumed_s is not None]
    elsewhere_s = 0.0
    for station, facts in read_ledgers(run_dir).items():
        mine = [one for one in day if one.station == station]
        for fact in facts:
            known = any(one.begin_s <= fact["time_s"] <= (one.resumed_s or float("inf")) for one in mine)
            if fact["fact"] == "pause" and fact["time_s"] > start_s and not known:
                elsewhere_s += fact["seconds"]
    return delays_s, elsewhere_s


def others_restarted(day: Sequence[Injected], run_dir: Path, start_s: float) -> int:
    """Robots without an incident whose worker was replaced all the same."""
    hit = {one.station for one in day}
    ledgers = read_ledgers(run_dir)
    return sum(
        any(fact["fact"] == "connect" and fact["time_s"] > start_s for fact in facts)
        for station, facts in ledgers.items()
        if station not in hit
    )


def figures(
    day: Sequence[Injected], run_dir: Path, census: Census, start_s: float, robots: int, minutes: float
) -> list[Figure]:
    delays_s, elsewhere_s = lost_beyond_s(day, run_dir, start_s)
    injected_s = sum(one.end_s - one.begin_s for one in day)
    beyond_s, day_s, wall_s = sum(delays_s) + elsewhere_s, 60 * RUN_MIN * robots, 60 * minutes * robots
    made = [
        Figure("incidents", len(day), f"on {len({one.station for one in day})} of {robots} robots"),
        Figure("injected downtime", 100 * injected_s / wall_s, "% of robot time", "", "the paper's day", 1.26),
        Figure(
            "lost beyond it, of the day's robot time",
            100 * beyond_s / day_s,
            "%",
            "<= 0.1",
            "paper, all",
            PAPER_PERCENT,
        ),
        Figure("lost beyond it, of the wall time", 100 * beyond_s / wall_s, "%"),
        Figure("a fault's end to the next action, median", statistics.median(delays_s), "s", "", "paper", 12.0),
        Figure("a fault's end to the next action, longest", max(delays_s), "s"),
        Figure("pauses of robots elsewhere", elsewhere_s, "s"),
        Figure("other robots stopped", others_restarted(day, run_dir, start_s), "robots", "<= 0"),
        Figure("labelled episodes", census.labelled, ""),
        Figure("lost, doubled, altered", len(census.lost) + len(census.duplicated) + len(census.altered), "", "<= 0"),
        Figure("stale actions", census.stale, "", "<= 0"),
    ]
    return made + contained(run_dir, RUN_MIN / minutes)


def contained(run_dir: Path, factor: float) -> list[Figure]:
    """The paper's ratio with its ten minutes compressed as the day is."""
    found = trace.read_trace(run_dir)
    ratios = [100 * one.ratio for one in containment.containment(found, 600 / factor, 120 / factor)]
    if not ratios:
        return []
    return [
        Figure("episodes after an event over before, median", statistics.median(ratios), "%", "", "paper", 99.0),
        Figure("episodes after an event over before, least", min(ratios), "%", "", "paper", 88.0),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
