"""What a run's own episodes and pauses would have given under two other designs (paper, section 4.5, Figure 9).

Synchronous rounds: nobody starts the next episode before everybody has finished this one. Full restart: every fault
event stops all robots, and episodes in progress are repeated. Sessions (before and after a lunch break) are replayed
one by one. Both replays favour the alternative: no time for updates between rounds, no repair time.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence


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
Stop = tuple[float, float]  # (begin, end) of a time in which no robot works
# (robot, begin and end of a pause) -> whether the robot's median pause takes its place
Replace = Callable[[str, float, float], bool]


def keep_pauses(robot_id: str, start_s: float, end_s: float) -> bool:
    """Every pause as it was."""
    return False


def replace_all(robot_id: str, start_s: float, end_s: float) -> bool:
    """Every pause becomes its robot's median pause."""
    return True


def replace_during(faults: Sequence[tuple[str, float, float]]) -> Replace:
    """Pauses that overlap a fault of their own robot, given as (robot, begin, end), become its median pause."""
    return lambda robot_id, start_s, end_s: any(
        robot == robot_id and begin_s < end_s and start_s < over_s for robot, begin_s, over_s in faults
    )


def cycles(trace: RobotTrace, session_start_s: float, replace: Replace = keep_pauses) -> list[Cycle]:
    """Pauses and durations. Raises ValueError where episodes overlap or begin before the session."""
    free_s, found, median_s = session_start_s, [], median_pause_s(trace)
    for start_s, end_s in trace.episodes:
        if not free_s <= start_s < end_s:
            raise ValueError(
                f"robot {trace.robot_id}: episode ({start_s}, {end_s}) begins before {free_s} or does not last; "
                "expected episodes in order within the session"
            )
        pause_s = median_s if replace(trace.robot_id, free_s, start_s) else start_s - free_s
        found.append((pause_s, end_s - start_s))
        free_s = end_s
    return found


def median_pause_s(trace: RobotTrace) -> float:
    """Of the pauses between this robot's episodes; 0 where there is none."""
    ends = [end_s for _, end_s in trace.episodes[:-1]]
    starts = [start_s for start_s, _ in trace.episodes[1:]]
    return statistics.median([start - end for start, end in zip(starts, ends, strict=True)] or [0.0])


def synchronous_rounds(
    traces: Sequence[RobotTrace], start_s: float, end_s: float, replace: Replace = keep_pauses
) -> Replay:
    """Round k: every robot that still has episodes does its k-th; it starts once the round has begun and its own
    pause since its last episode is over. The round ends with the last of them."""
    per_robot = [cycles(trace, start_s, replace) for trace in traces]
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
    return stopped(traces, start_s, end_s, [(event_s, event_s + restart_s) for event_s in events_s])


def stopped(traces: Sequence[RobotTrace], start_s: float, end_s: float, stops: Sequence[Stop]) -> Replay:
    """As `full_restart`, for stops of different lengths, e.g. until the failed robot was repaired too."""
    ordered = sorted(stops)
    finished = sum(_restarted(cycles(trace, start_s), start_s, end_s, ordered) for trace in traces)
    return Replay(finished, _recorded(traces))


def _restarted(mine: list[Cycle], now_s: float, end_s: float, stops: list[Stop]) -> int:
    """How many of one robot's episodes are finished by `end_s`."""
    for number, (pause_s, duration_s) in enumerate(mine):
        begin_s = _after_stops(now_s + pause_s, stops)
        while (event_s := next((e for e, _ in stops if begin_s <= e < begin_s + duration_s), None)) is not None:
            begin_s = _after_stops(event_s, stops)
            if begin_s > end_s:
                return number
        now_s = begin_s + duration_s
        if now_s > end_s:
            return number
    return len(mine)


def _after_stops(at_s: float, stops: list[Stop]) -> float:
    """The first moment from `at_s` on that no stop covers; a stop may run into the next event's."""
    for begin_s, over_s in stops:
        if begin_s <= at_s < over_s:
            at_s = over_s
    return at_s


def _recorded(traces: Sequence[RobotTrace]) -> int:
    total = sum(len(trace.episodes) for trace in traces)
    if total == 0:
        raise ValueError("trace replay: no episodes in the session")
    return total


def total(replays: Sequence[Replay]) -> Replay:
    """Sessions that were replayed apart, together."""
    return Replay(
        sum(one.finished for one in replays),
        sum(one.recorded for one in replays),
        tuple(length_s for one in replays for length_s in one.round_s),
    )
