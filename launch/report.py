"""One page about a run: what it collected, what broke, whether that stayed where it was, how fast its channels were.

    python -m launch.report --run=NAME [--runs=FOLDER] [--clock_factor=41]

Everything is computed from the run's folder, so a finished run, or one that goes on, can be read at any time.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from absl import app, flags

from cel_jax.evaluation import availability, containment, latency, trace, trace_variants
from cel_jax.recovery import latency_record, rundb

RUN = flags.DEFINE_string("run", "", "the run's name")
RUNS = flags.DEFINE_string("runs", "runs", "folder of all runs")
CLOCK_FACTOR = flags.DEFINE_float("clock_factor", 1.0, "of a run whose day was compressed: all windows shrink by it")
SHOWN = 12  # downtimes listed by name


def main(argv: list[str]) -> int:
    del argv
    run_dir = Path(RUNS.value) / RUN.value
    try:
        if not RUN.value:
            raise ValueError("give --run=NAME, the name of a folder under --runs")
        print("\n".join(page(run_dir, CLOCK_FACTOR.value)))
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def page(run_dir: Path, clock_factor: float = 1.0) -> list[str]:
    """The page's lines. Raises as `read_trace`."""
    found = trace.read_trace(run_dir, trace.SESSION_GAP_S / clock_factor)
    events = trace.grouped(found.downtimes, trace.GROUP_WINDOW_S / clock_factor)
    return [
        f"run {run_dir.name}: {found.finished} episodes of {found.robots} robots in {found.run_s / 60:.1f} min, "
        f"{len(found.sessions)} session(s)" + (f", {found.skipped} left out (clock)" if found.skipped else ""),
        *_section("Downtimes of robots", _downtimes(found, len(events))),
        *_section("Containment", _containment(found, clock_factor)),
        *_section(
            "The same run under other designs", trace_variants.lines(trace_variants.variants(found, clock_factor))
        ),
        *_section("Model of availability", _model(found, len(events), clock_factor)),
        *_section("Channels", latency.lines(_latencies(run_dir)) or ["nothing measured"]),
    ]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)]


def _downtimes(found: trace.RunTrace, events: int) -> list[str]:
    downs = found.downtimes
    if not downs:
        return ["none"]
    lost_s, total_s = containment.lost_robot_s(downs, found), found.robots * found.run_s
    delays_s = containment.resume_delays_s(downs)
    never = [one.robot_id for one in downs if one.resumed_s is None]
    blocked = [one for one in downs if one.blocked]
    words = f"{len(downs)} downtimes of {len({one.robot_id for one in downs})} robots in {events} events"
    lines = [f"{words}; {lost_s / 3600:.2f} robot-hours lost, {100 * lost_s / total_s:.2f} % of {total_s / 3600:.1f}"]
    lines.append(f"recovery was blocked {len(blocked)} times; never came back: {', '.join(never) or 'none'}")
    if delays_s:
        lines.append(
            f"ready again to next episode: median {statistics.median(delays_s):.1f} s, max {max(delays_s):.1f} s"
        )
    shown = sorted(downs, key=lambda one: _length_s(one), reverse=True)[:SHOWN]
    return [*lines, *(f"{one.robot_id}: {_length(one)}, {one.failures} x {one.cause[:80]}" for one in shown)]


def _length_s(one: trace.Downtime) -> float:
    return float("inf") if one.resumed_s is None else one.resumed_s - one.start_s


def _length(one: trace.Downtime) -> str:
    return "never back" if one.resumed_s is None else f"{_length_s(one):.1f} s"


def _containment(found: trace.RunTrace, clock_factor: float) -> list[str]:
    window_s = containment.WINDOW_S / clock_factor
    events = containment.containment(found, window_s, trace.GROUP_WINDOW_S / clock_factor)
    if not events:
        return [f"no fault event lies {window_s:g} s from both ends of its session"]
    ratios = [event.ratio for event in events]
    return [
        f"{len(events)} events; episodes in the {window_s:g} s after over before: "
        f"median {100 * statistics.median(ratios):.0f} %, least {100 * min(ratios):.0f} %"
    ]


def _model(found: trace.RunTrace, events: int, clock_factor: float) -> list[str]:
    """In hours of the day's clock."""
    hours = clock_factor * found.run_s / 3600
    rate = availability.event_rate(events, found.robots, hours)
    lost_h = clock_factor * containment.lost_robot_s(found.downtimes, found) / 3600
    shares = [100 * availability.system_share(found.robots, rate, m / 60) for m in trace_variants.RESTARTS_MIN]
    restarts = ", ".join(
        f"{m:g} min: {share:.1f} %" for m, share in zip(trace_variants.RESTARTS_MIN, shares, strict=True)
    )
    own = 100 * availability.robot_share([lost_h], found.robots, hours)
    return [
        f"{rate:.4f} fault events per robot-hour; time left if every event restarts all robots for {restarts}",
        f"time left with recovery in place: {own:.1f} %",
    ]


def _latencies(run_dir: Path) -> dict:
    db = rundb.open_db(run_dir)
    try:
        return latency_record.read(db)
    finally:
        db.close()


def cli() -> None:
    app.run(main)


if __name__ == "__main__":
    cli()
