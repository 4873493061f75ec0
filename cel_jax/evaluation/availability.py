"""How much robot time is left for collection under two ways of recovery (paper, equations 50 and 51).

N robots; lambda fault events per robot and hour; times in hours.

python -m cel_jax.evaluation.availability      # the paper's figures
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Incident:
    """One robot down from `start_h` on for `downtime_h`."""

    robot_id: str
    start_h: float
    downtime_h: float


def system_share(robots: int, events_per_robot_hour: float, restart_h: float) -> float:
    """A_sys, equation (50): every fault event stops all robots for a restart."""
    _not_negative(robots=robots, events_per_robot_hour=events_per_robot_hour, restart_h=restart_h)
    return 1 / (1 + robots * events_per_robot_hour * restart_h)


def robot_share(downtimes_h: Sequence[float], robots: int, run_h: float) -> float:
    """A_robot, equation (51): an incident removes its own robot only. Raises where more was lost than there was."""
    _not_negative(robots=robots, run_h=run_h, shortest_downtime_h=min(downtimes_h, default=0))
    lost, total = sum(downtimes_h), robots * run_h
    if total <= 0 or lost > total:
        raise ValueError(f"robot_share: {lost} robot-hours lost of {total}; check robots {robots} and run_h {run_h}")
    return 1 - lost / total


def fault_events(incidents: Sequence[Incident], window_h: float = 2 / 60) -> list[list[Incident]]:
    """Incidents that began within `window_h` (2 min) of the one before share a cause and are one event."""
    events: list[list[Incident]] = []
    for incident in sorted(incidents, key=lambda one: one.start_h):
        if events and incident.start_h - events[-1][-1].start_h <= window_h:
            events[-1].append(incident)
        else:
            events.append([incident])
    return events


def event_rate(events: int, robots: int, run_h: float) -> float:
    """lambda: fault events per robot-hour."""
    if robots <= 0 or run_h <= 0:
        raise ValueError(f"event_rate: robots {robots} and run_h {run_h} must be positive")
    return events / (robots * run_h)


def _not_negative(**values: float) -> None:
    bad = {name: value for name, value in values.items() if not value >= 0}
    if bad:
        raise ValueError(f"availability: must not be negative: {bad}")


# The paper's 96-robot run (its section 4.5 and appendix): 19 fault events, 8.3 robot-hours lost in 6.88 h.
PAPER_ROBOTS, PAPER_RUN_H, PAPER_EVENTS, PAPER_LOST_H = 96, 6.88, 19, 8.3
PAPER_RESTARTS_MIN = (2, 5, 10)


def paper_lines(sizes: Sequence[int] = (PAPER_ROBOTS, 1024)) -> list[str]:
    """The shares of robot time that the paper states, recomputed from its counts."""
    rate = round(event_rate(PAPER_EVENTS, PAPER_ROBOTS, PAPER_RUN_H), 4)  # the paper goes on with 0.0288
    lines = [f"{rate:.4f} fault events per robot-hour"]
    for robots in sizes:
        shares = (100 * system_share(robots, rate, minutes / 60) for minutes in PAPER_RESTARTS_MIN)
        words = ", ".join(f"{share:.1f} %" for share in shares)
        lines.append(f"{robots} robots, all restart for {PAPER_RESTARTS_MIN} min: {words}")
    share = robot_share([PAPER_LOST_H], PAPER_ROBOTS, PAPER_RUN_H)
    return [*lines, f"only the robot itself restarts, any number of robots: {100 * share:.1f} %"]


if __name__ == "__main__":
    print("\n".join(paper_lines()))
