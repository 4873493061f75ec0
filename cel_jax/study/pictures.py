"""Pictures of a study, from its run.db: what a reader wants to see before the tables.

Needs matplotlib (extra `report`). Every picture is an SVG file: it stays sharp, and its text can be searched.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cel_jax.evaluation.intervals import Interval, wilson
from cel_jax.study import pooled, results
from cel_jax.study.grid import Cell
from cel_jax.study.lockstep import Round

ROBOTS = re.compile(r"(\d+)_robots")
SIZE_IN = (6.4, 4.0)

Named = dict[str, list[list[Round]]]  # a grid's row -> the rounds of each of its seeds
Share = Callable[[Sequence[Round], int], float]  # one round of every seed, stage -> percent


def draw_all(database: Path, cells: Sequence[Cell], folder: Path) -> list[Path]:
    """Draws what the study has data for and returns the files. Raises ModuleNotFoundError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    named = _collecting(database, cells)
    drawn = [_success(named, folder / "success.svg"), _failures(named, folder / "failures.svg")]
    drawn.append(_effective_share(named, folder / "effective_share.svg"))
    drawn.append(_stage_share(named, folder / "stage_share.svg"))
    drawn.append(_fleet_size(pooled.variants(database, cells), folder / "fleet_size.svg"))
    return [path for path in drawn if path is not None]


def _collecting(database: Path, cells: Sequence[Cell]) -> Named:
    """Without the cells that collect nothing."""
    found: Named = collections.defaultdict(list)
    for cell in cells:
        rounds = results.rounds(database, cell)
        if any(r.collected.episodes for r in rounds):
            found[cell.name].append(rounds)
    return found


def _success(named: Named, path: Path) -> Path | None:
    """The fleet's own success in each round, against the episodes before it; seeds pooled."""
    if not named:
        return None
    figure, axes = _figure("episodes of the fleet so far", "success of the round's episodes, %")
    for name, seeds in named.items():
        points = [_pool(same) for same in zip(*seeds, strict=False)]
        before = [sum(r.collected.episodes for r in seeds[0][:number]) for number in range(len(points))]
        _with_interval(axes, before, points, name)
    return _save(figure, axes, path)


def _failures(named: Named, path: Path) -> Path | None:
    """For every arm: which share of a round's episodes failed in each step of the task."""
    stages = {stage for seeds in named.values() for rounds in seeds for r in rounds for stage in r.collected.failures}
    return _stacked(named, sorted(stages), _share, "episodes that failed in this step, %", path)


def _stage_share(named: Named, path: Path) -> Path | None:
    """For every arm: how the sampling weight is spread over the steps of the task."""
    stages = {stage for seeds in named.values() for rounds in seeds for r in rounds for stage in r.stage_share}
    return _stacked(named, sorted(stages), _weight_share, "weight of the chunks that begin in this step, %", path)


def _stacked(named: Named, stages: list[int], share: Share, label: str, path: Path) -> Path | None:
    if not named or not stages:
        return None
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(named), figsize=(3.2 * len(named) + 1, 3.6), sharey=True, squeeze=False)
    for axes, (name, seeds) in zip(grid[0], named.items(), strict=True):
        shares = [[share(same, stage) for same in zip(*seeds, strict=False)] for stage in stages]
        axes.stackplot(range(len(shares[0])), shares, labels=[f"step {stage + 1}" for stage in stages], alpha=0.85)
        axes.set(title=name, xlabel="round", ylim=(0, 100))
    grid[0][0].set_ylabel(label)
    grid[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return _written(figure, path)


def _effective_share(named: Named, path: Path) -> Path | None:
    """How many chunks the weights really draw from, as a share of all."""
    if not named:
        return None
    figure, axes = _figure("round", "effective share of the chunks, %")
    for name, seeds in named.items():
        means = [100 * sum(r.effective_share for r in same) / len(same) for same in zip(*seeds, strict=False)]
        axes.plot(range(len(means)), means, marker="o", label=name)
    axes.set_ylim(0, 105)
    return _save(figure, axes, path)


def _fleet_size(variants: Iterable[pooled.Variant], path: Path) -> Path | None:
    """Success on held-out robots against the number of robots that collected."""
    sizes = {int(match[1]): row.rate for row in variants if (match := ROBOTS.fullmatch(row.name))}
    if not sizes:
        return None
    figure, axes = _figure("robots in the fleet", "success on held-out robots, %")
    _with_interval(axes, sorted(sizes), [sizes[size] for size in sorted(sizes)], "last version")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
    return _save(figure, axes, path)


def _pool(same: Sequence[Round]) -> Interval:
    return wilson(sum(r.collected.successes for r in same), sum(r.collected.episodes for r in same))


def _share(same: Sequence[Round], stage: int) -> float:
    failed = sum(r.collected.failures.get(stage, 0) for r in same)
    return 100 * failed / sum(r.collected.episodes for r in same)


def _weight_share(same: Sequence[Round], stage: int) -> float:
    return 100 * sum(r.stage_share.get(stage, 0.0) for r in same) / len(same)


def _with_interval(axes: Any, x: Sequence[int], points: Sequence[Interval], label: str) -> None:
    values = [100 * point.value for point in points]
    below = [100 * (point.value - point.low) for point in points]
    above = [100 * (point.high - point.value) for point in points]
    axes.errorbar(x, values, yerr=[below, above], marker="o", capsize=3, label=label)


def _figure(x: str, y: str) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=SIZE_IN)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> Path:
    axes.legend()
    return _written(figure, path)


def _written(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path
