"""Success tables in the form of the paper's Table 11: robots in rows, policies in columns, pooled rate below."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cel_jax.evaluation.intervals import Interval, wilson


@dataclasses.dataclass(frozen=True)
class RobotResult:
    """Trials of one policy on one robot."""

    policy: str
    robot_id: str
    successes: int
    trials: int


def pooled(results: Sequence[RobotResult], policy: str) -> Interval:
    """The policy's rate over all its trials with Wilson's 95 % interval. Raises where it has none."""
    mine = [result for result in results if result.policy == policy]
    if not mine:
        known = sorted({result.policy for result in results})
        raise ValueError(f"no trials of policy {policy!r}; known are {known}")
    return wilson(sum(r.successes for r in mine), sum(r.trials for r in mine))


def render(results: Sequence[RobotResult], title: str = "") -> str:
    """A text table: a row of n/trials for each robot, then Avg. (%), then the 95 % interval. `-`: no trials."""
    cells = _cells(results)
    policies = list(dict.fromkeys(result.policy for result in results))
    robots = list(dict.fromkeys(result.robot_id for result in results))
    rows = [["", *policies]]
    rows += [[robot, *(cells.get((policy, robot), "-") for policy in policies)] for robot in robots]
    rates = [pooled(results, policy) for policy in policies]
    rows.append(["Avg. (%)", *(f"{100 * rate.value:.2f}" for rate in rates)])
    rows.append(["95 % (Wilson)", *(f"{100 * rate.low:.1f}-{100 * rate.high:.1f}" for rate in rates)])
    return "\n".join(([title] if title else []) + _align(rows))


def _cells(results: Sequence[RobotResult]) -> dict[tuple[str, str], str]:
    cells: dict[tuple[str, str], str] = {}
    for result in results:
        key = (result.policy, result.robot_id)
        if key in cells:
            raise ValueError(f"two results of policy {key[0]!r} on robot {key[1]!r}; add up their trials first")
        cells[key] = f"{result.successes}/{result.trials}"
    return cells


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return [line.rstrip() for line in lines]
