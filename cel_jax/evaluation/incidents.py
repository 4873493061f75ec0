"""A day of incidents with the paper's statistics (its section 4.5 and appendix on recovery cost), seeded.

Fixed are the counts that the paper states: 96 robots for 6.88 h, 30 incidents on 22 robots in 19 events (incidents
that began within two minutes); 19 from compute or network on 18 robots (median 15 min), 9 from hardware on 6 robots
(median 8 min, longest 72), 2 of robots that were not ready; four robots of one host at once; 8.3 robot-hours in all.
The seed chooses which robots, when, and who gets which length. Single lengths are not published: the tables below are
chosen so that medians, longest and sum are the paper's.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

RUN_MIN, ROBOTS = 6.88 * 60, 96
HOST_GROUP = 4  # robots of one host whose memory was exhausted
EVENT_SIZES = (HOST_GROUP, 4, 3, 2, 2, 2, *(1,) * 13)  # 30 incidents in 19 events
GAP_MIN = 6.0  # between events: more than the two minutes that would join them
SPREAD_MIN = 0.4  # within an event: the largest spans less than two minutes
COMPUTE_MIN = (5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 67)
HARDWARE_MIN = (3, 4, 5, 7, 8, 9, 11, 15, 72)
NOT_READY_MIN = (10, 24)
MARGIN_MIN = 10.0  # no event begins closer to the run's beginning


@dataclasses.dataclass(frozen=True)
class PlannedIncident:
    """One robot out for `downtime_min` from `start_min` on. kind: compute, network, hardware or not_ready. event: which
    fault event it belongs to. returns: False for the host's robots, which do not come back."""

    robot: int
    kind: str
    start_min: float
    downtime_min: float
    event: int
    returns: bool = True


def paper_day(seed: int, robots: int = ROBOTS) -> list[PlannedIncident]:
    """The day's incidents in order of their start. Raises ValueError for fewer than 22 robots."""
    if robots < 22:
        raise ValueError(f"paper_day: 22 robots have incidents, the fleet has {robots}; give it at least 22")
    rng = random.Random(seed)
    day = _draw(rng, robots)
    while not _possible(day):
        day = _draw(rng, robots)
    return day


def _possible(day: Sequence[PlannedIncident]) -> bool:
    """Whether no robot fails while it is down."""
    over_min: dict[int, float] = {}
    for one in day:
        if one.start_min < over_min.get(one.robot, 0.0):
            return False
        over_min[one.robot] = one.start_min + one.downtime_min
    return True


def _draw(rng: random.Random, robots: int) -> list[PlannedIncident]:
    kinds = _kinds(rng)
    victims = _victims(rng, kinds, robots)
    lengths = {
        "compute": _mixed(rng, COMPUTE_MIN),
        "hardware": _mixed(rng, HARDWARE_MIN),
        "not_ready": _mixed(rng, NOT_READY_MIN),
    }
    planned = []
    for event, (begin_min, members) in enumerate(zip(_starts(rng), _events(kinds), strict=True)):
        for place, index in enumerate(members):
            kind, start_min = kinds[index], begin_min + SPREAD_MIN * place
            downtime_min = min(lengths[kind].pop(), RUN_MIN - start_min)
            shown = kind if kind != "compute" or event == 0 or rng.random() < 0.5 else "network"
            planned.append(PlannedIncident(victims[index], shown, start_min, downtime_min, event, event != 0))
    return sorted(planned, key=lambda one: one.start_min)


def _kinds(rng: random.Random) -> list[str]:
    """The kind of each of the 30 incidents, those of the larger events first: a shared cause is compute or network."""
    shared = sum(size for size in EVENT_SIZES if size > 1)
    alone = ["compute"] * (len(COMPUTE_MIN) - shared) + ["hardware"] * len(HARDWARE_MIN) + ["not_ready"] * 2
    rng.shuffle(alone)
    return ["compute"] * shared + alone


def _victims(rng: random.Random, kinds: Sequence[str], robots: int) -> list[int]:
    """Whose incident each is: 18 robots for compute (one of them twice), 6 for hardware, 22 in all."""
    first = rng.randrange(robots - HOST_GROUP)
    host = list(range(first, first + HOST_GROUP))
    others = rng.sample([robot for robot in range(robots) if robot not in host], 18)
    compute = [*host, *others[:14], others[13]]
    hardware = [*others[14:17], *others[10:13]]  # three robots have both kinds
    bad = [*hardware, *rng.sample(hardware, 3)]
    pools = {"compute": iter(compute), "hardware": iter(bad), "not_ready": iter([others[17], others[9]])}
    return [next(pools[kind]) for kind in kinds]


def _events(kinds: Sequence[str]) -> Iterator[list[int]]:
    """The incidents of each event."""
    begin = 0
    for size in EVENT_SIZES:
        yield list(range(begin, begin + size))
        begin += size
    assert begin == len(kinds)


def _starts(rng: random.Random) -> list[float]:
    """When each event begins; the host's event is the last one, as in the paper: its robots are out for the rest."""
    free_min = RUN_MIN - MARGIN_MIN - max(HARDWARE_MIN) - GAP_MIN * len(EVENT_SIZES)
    marks = sorted(rng.uniform(0.0, free_min) for _ in EVENT_SIZES)
    starts = [MARGIN_MIN + mark + GAP_MIN * place for place, mark in enumerate(marks)]
    last = starts.pop()
    rng.shuffle(starts)
    return [last, *starts]


def _mixed(rng: random.Random, values: Sequence[float]) -> list[float]:
    mixed = list(values)
    rng.shuffle(mixed)
    return mixed
