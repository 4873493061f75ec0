"""Cells pooled over their start seeds: a rate with its interval, and differences that keep seeds together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cel_jax.data.episode import Outcome
from cel_jax.evaluation import rundb_evals
from cel_jax.evaluation.intervals import Interval, hierarchical_bootstrap, hierarchical_difference
from cel_jax.evaluation.rundb_evals import EvaluationRow
from cel_jax.study.grid import Cell

Robots = list[np.ndarray]  # of one seed: for each robot bool [trials], in the order of the scenes
START = "start"
REFERENCES = (START, "demonstrations", "uniform")  # what every other variant is compared with


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of a grid. seeds: seed -> outcomes of the last evaluation."""

    name: str
    seeds: dict[int, Robots]

    @property
    def rate(self) -> Interval:
        """Mean over seeds; seeds, robots and trials are drawn again."""
        return hierarchical_bootstrap([self.seeds[seed] for seed in sorted(self.seeds)])


def variants(database: Path, cells: Sequence[Cell]) -> list[Variant]:
    """Start policies first, then the grid's rows in their order; rows without an evaluation are left out."""
    found = {START: {seed: _last(database, f"start-seed{seed}") for seed in sorted({cell.seed for cell in cells})}}
    for cell in cells:
        found.setdefault(cell.name, {})[cell.seed] = _last(database, cell.folder, above_version=0)
    kept = {name: {seed: robots for seed, robots in seeds.items() if robots} for name, seeds in found.items()}
    return [Variant(name, seeds) for name, seeds in kept.items() if seeds]


def minus(a: Variant, b: Variant) -> Interval | None:
    """Rate a - rate b over the seeds that both have; None where they share none."""
    shared = sorted(set(a.seeds) & set(b.seeds))
    if not shared:
        return None
    return hierarchical_difference([a.seeds[seed] for seed in shared], [b.seeds[seed] for seed in shared])


def table(database: Path, cells: Sequence[Cell]) -> str:
    """A row for every variant, in points: rate, and difference from the references, each with its 95 % interval."""
    rows = variants(database, cells)
    references = [row for row in rows if row.name in REFERENCES]
    lines = [_line(["", "seeds", "success %", *(f"minus {row.name}" for row in references)])]
    lines.append(_line(["---"] * (3 + len(references))))
    for row in rows:
        differences = [None if row is other else minus(row, other) for other in references]
        lines.append(_line([row.name, str(len(row.seeds)), row.rate.percent(), *map(_signed, differences)]))
    return "\n".join(lines)


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(fields)} |"


def _signed(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{100 * interval.value:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def _last(database: Path, name: str, above_version: int = -1) -> Robots:
    rows = [row for row in rundb_evals.read(database, name) if row.policy_version > above_version]
    last = max((row.policy_version for row in rows), default=0)
    return _by_robot(rundb_evals.latest([row for row in rows if row.policy_version == last]))


def _by_robot(rows: Sequence[EvaluationRow]) -> Robots:
    robots: dict[str, list[tuple[int, bool]]] = {}
    for row in rows:
        robots.setdefault(row.robot_id, []).append((row.seed, row.outcome is Outcome.SUCCESS))
    return [np.array([won for _, won in sorted(trials)]) for _, trials in sorted(robots.items())]
