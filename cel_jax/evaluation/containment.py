"""Did a fault stay with its robot? Episodes of the whole fleet after a fault event over those before, and how long a
robot took from its incident's end to its next episode (paper, section 4.5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cel_jax.evaluation.trace import GROUP_WINDOW_S, Downtime, RunTrace, grouped

WINDOW_S = 600.0


@dataclasses.dataclass(frozen=True)
class Contained:
    """One fault event: episodes that ended in the window before and after it."""

    start_s: float
    robots: tuple[str, ...]
    before: int
    after: int

    @property
    def ratio(self) -> float:
        return self.after / self.before


def containment(trace: RunTrace, window_s: float = WINDOW_S, group_s: float = GROUP_WINDOW_S) -> list[Contained]:
    """The events that lie at least `window_s` from both ends of their session and had episodes before them. group_s:
    incidents that begin within it are one event; smaller on a compressed clock."""
    ends = sorted(end_s for session in trace.sessions for robot in session.robots for _, end_s in robot.episodes)
    found = []
    for event in grouped(trace.downtimes, group_s):
        at_s = event[0].start_s
        if not any(s.start_s + window_s <= at_s <= s.end_s - window_s for s in trace.sessions):
            continue
        before = sum(at_s - window_s <= end_s < at_s for end_s in ends)
        after = sum(at_s <= end_s < at_s + window_s for end_s in ends)
        if before:
            found.append(Contained(at_s, tuple(one.robot_id for one in event), before, after))
    return found


def resume_delays_s(downs: Sequence[Downtime]) -> list[float]:
    """Seconds from the moment a robot was ready again to the start of its next finished episode."""
    return [
        max(0.0, one.resumed_s - one.ready_s) for one in downs if one.ready_s is not None and one.resumed_s is not None
    ]


def lost_robot_s(downs: Sequence[Downtime], trace: RunTrace) -> float:
    """Robot time that the downtimes took out of the sessions; one without an end lasts to the last session's end."""
    return sum(_inside(one, trace) for one in downs)


def _inside(one: Downtime, trace: RunTrace) -> float:
    over_s = trace.sessions[-1].end_s if one.resumed_s is None else one.resumed_s
    return sum(max(0.0, min(over_s, s.end_s) - max(one.start_s, s.start_s)) for s in trace.sessions)
