"""What a run's own episodes and pauses would have given under two other designs (paper, section 4.5, Figure 9).

Synchronous rounds: nobody starts the next episode before everybody has finished this one. Full restart: every fault
event stops all robots, and episodes in progress are repeated. Sessions (before and after a lunch break) are replayed
one by one. Both replays favour the alternative: no time for updates between rounds, no repair time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class RobotTrace:
    """One robot's session: (start_s, end_s) of its episodes, in order, not overlapping."""

    robot_id: str
    episodes: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Replay:
    """Episodes finished within the session under the alternative, and in the run; the rounds' lengths if any."""

    finished: int
    recorded: int
    round_s: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        return self.finished / self.recorded


Cycle = tuple[float, float]  # (pause before the episode, the episode), seconds


def cycles(trace: RobotTrace, session_start_s: float) -> list[Cycle]:
    """Pauses and durations. Raises ValueError where episodes overlap or begin before the session."""
    free_s, found = session_start_s, []
    for start_s, end_s in trace.episodes:
        if not free_s <= start_s < end_s:
            raise ValueError(
                f"robot {trace.robot_id}: episode ({start_s}, {end_s}) begins before {free_s} or does not last; "
                "expected episodes in order within the session"
            )
        found.append((start_s - free_s, end_s - start_s))
        free_s = end_s
    return found


def synchronous_rounds(traces: Sequence[RobotTrace], start_s: float, end_s: float) -> Replay:
    """Round k: every robot that still has episodes does its k-th; it starts once the round has begun and its own
    pause since its last episode is over. The round ends with the last of them."""
    per_robot = [cycles(trace, start_s) for trace in traces]
    free_s = [start_s] * len(traces)
    round_start_s, finished, lengths = start_s, 0, []
    for number in range(max(map(len, per_robot), default=0)):
        taking_part = [i for i, mine in enumerate(per_robot) if number < len(mine)]
        for i in taking_part:
            pause_s, duration_s = per_robot[i][number]
            free_s[i] = max(round_start_s, free_s[i] + pause_s) + duration_s
        finished += sum(free_s[i] <= end_s for i in taking_part)
        round_end_s = max(free_s[i] for i in taking_part)
        lengths.append(round_end_s - round_start_s)
        round_start_s = round_end_s
        if round_start_s >= end_s:
            break
    return Replay(finished, _recorded(traces), tuple(lengths))


def full_restart(
    traces: Sequence[RobotTrace], start_s: float, end_s: float, events_s: Sequence[float], restart_s: float
) -> Replay:
    """Every event stops all robots for `restart_s`; an episode it meets is repeated in full afterwards.

    Pauses go on during a restart (a person can reset a scene meanwhile).
    """
    events = sorted(events_s)
    finished = sum(_restarted(cycles(trace, start_s), start_s, end_s, events, restart_s) for trace in traces)
    return Replay(finished, _recorded(traces))


def _restarted(mine: list[Cycle], now_s: float, end_s: float, events: list[float], restart_s: float) -> int:
    """How many of one robot's episodes are finished by `end_s`."""
    for number, (pause_s, duration_s) in enumerate(mine):
        begin_s = _after_restarts(now_s + pause_s, events, restart_s)
        while (event_s := next((e for e in events if begin_s <= e < begin_s + duration_s), None)) is not None:
            begin_s = _after_restarts(event_s, events, restart_s)
            if begin_s > end_s:
                return number
        now_s = begin_s + duration_s
        if now_s > end_s:
            return number
    return len(mine)


def _after_restarts(at_s: float, events: list[float], restart_s: float) -> float:
    """The first moment from `at_s` on that no restart covers; a restart may run into the next event's."""
    for event_s in events:
        if event_s <= at_s < event_s + restart_s:
            at_s = event_s + restart_s
    return at_s


def _recorded(traces: Sequence[RobotTrace]) -> int:
    total = sum(len(trace.episodes) for trace in traces)
    if total == 0:
        raise ValueError("trace replay: no episodes in the session")
    return total
