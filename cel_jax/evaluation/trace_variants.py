"""Every way to replay a recorded run that the paper compares, and two that it leaves out, as lines of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from cel_jax.evaluation.trace import GROUP_WINDOW_S, Downtime, RunTrace, Session, grouped
from cel_jax.evaluation.trace_replay import (
    Replay,
    Stop,
    full_restart,
    keep_pauses,
    replace_all,
    replace_during,
    stopped,
    synchronous_rounds,
    total,
)

RESTARTS_MIN = (2.0, 5.0, 10.0)


def variants(trace: RunTrace, clock_factor: float = 1.0) -> dict[str, Replay]:
    """What was collected, and what each alternative would have collected, by name. clock_factor: how much faster than
    a day's clock the run went; restarts and the window that groups incidents shrink by it."""
    found = {"as recorded": Replay(trace.finished, trace.finished)}
    faults = [(one.robot_id, one.start_s, _over_s(one, trace)) for one in trace.downtimes]
    rules = {"": keep_pauses, ", no pauses by faults": replace_during(faults), ", median pauses": replace_all}
    for words, rule in rules.items():
        found[f"synchronous rounds{words}"] = _each(trace, lambda s, rule=rule: synchronous_rounds(*_of(s), rule))  # type: ignore[misc]
    events = grouped(trace.downtimes, GROUP_WINDOW_S / clock_factor)
    events_s = [event[0].start_s for event in events]
    for minutes in RESTARTS_MIN:
        restart_s = 60.0 * minutes / clock_factor
        name = f"full restart of {minutes:g} min"
        found[name] = _each(trace, lambda s, r=restart_s: full_restart(*_of(s), events_s, r))  # type: ignore[misc]
        stops = until_repaired(events, restart_s)
        found[f"{name}, waiting for repair"] = _each(trace, lambda s, stops=stops: stopped(*_of(s), stops))  # type: ignore[misc]
    return found


def until_repaired(events: Sequence[Sequence[Downtime]], restart_s: float) -> list[Stop]:
    """Every event stops all robots until its robots work again, at least for `restart_s`. A robot that never returns
    is given up: nobody waits for it."""
    stops = []
    for event in events:
        begin_s = event[0].start_s
        repaired_s = [one.resumed_s for one in event if one.resumed_s is not None]
        stops.append((begin_s, max([begin_s + restart_s, *repaired_s])))
    return stops


def _over_s(one: Downtime, trace: RunTrace) -> float:
    return trace.sessions[-1].end_s if one.resumed_s is None else one.resumed_s


def _of(session: Session) -> tuple[Sequence, float, float]:
    return session.robots, session.start_s, session.end_s


def _each(trace: RunTrace, replay: Callable[[Session], Replay]) -> Replay:
    return total([replay(session) for session in trace.sessions])


def lines(found: dict[str, Replay]) -> list[str]:
    """A line for each variant."""
    width = max(map(len, found))
    return [_line(name.ljust(width), replay) for name, replay in found.items()]


def _line(name: str, replay: Replay) -> str:
    rounds = f"  rounds of {statistics.median(replay.round_s):.0f} s (median)" if replay.round_s else ""
    return f"{name}  {replay.finished:6d} episodes  {100 * replay.share:5.1f} %{rounds}"
