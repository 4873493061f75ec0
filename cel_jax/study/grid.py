"""Grids: which cells a study runs. A cell is an arm, a start seed and what it changes in the configuration."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from cel_jax.config import RunConfig

Changes = Mapping[str, Any]  # path in the configuration -> value


@dataclasses.dataclass(frozen=True)
class Cell:
    """name: unique in its grid, without the seed."""

    name: str
    arm: str
    seed: int
    changes: Changes = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> str:
        return f"{self.name}-seed{self.seed}"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of a grid before it is multiplied by seeds."""

    name: str
    arm: str = "fert"
    changes: Changes = dataclasses.field(default_factory=dict)


CONTROLS = (Variant("demonstrations", "demonstrations"), Variant("uniform", "uniform"), Variant("fert"))

GRIDS: dict[str, tuple[Variant, ...]] = {
    "main": CONTROLS,
    "controls": (
        *CONTROLS,
        Variant("oracle", "oracle"),
        Variant("nearest", "nearest"),
        Variant("random", "random"),
    ),
    "table12": (
        Variant("without retrieval", "uniform"),
        Variant("without extension", changes={"fert.h_pre_frames": 0, "fert.h_post_frames": 0}),
        *(Variant(f"rho {rho}", changes={"fert.rho": rho}) for rho in (0.8, 0.88, 0.95)),
        *(Variant(f"sync x{scale}", changes={"sync_scale": scale}) for scale in (0.2, 3.0)),
    ),
    "figure7": tuple(
        Variant(f"{robots} robots", changes={"fleet.robots": robots, "episodes_per_robot": True})
        for robots in (4, 8, 16, 32, 64, 96)
    ),
}


def cells(grid: str, seeds: int, arms: tuple[str, ...] = ()) -> list[Cell]:
    """The cells of a named grid, seed by seed, or of single arms. Raises ValueError for an unknown name."""
    if arms:
        variants = tuple(Variant(name, name) for name in arms)
    elif grid in GRIDS:
        variants = GRIDS[grid]
    else:
        raise ValueError(f"unknown grid {grid!r}; there are {', '.join(GRIDS)}")
    return [Cell(v.name.replace(" ", "_"), v.arm, seed, v.changes) for seed in range(seeds) for v in variants]


def configured(base: RunConfig, cell: Cell) -> RunConfig:
    """The cell's own configuration: base, changes, and the seed of start policy, scenes and training."""
    config = copy.deepcopy(base)
    for path, value in cell.changes.items():
        _CHANGES.get(path, _set)(config, path, value)
    config.init.seed = config.fleet.seed = config.train.seed = cell.seed
    return config


def _set(config: RunConfig, path: str, value: Any) -> None:
    section, field = path.split(".")
    part = getattr(config, section)
    if not hasattr(part, field):
        raise ValueError(f"a grid changes {path!r}, which the configuration does not have")
    setattr(part, field, value)


def _scale_sync(config: RunConfig, _: str, scale: float) -> None:
    """Another interval between versions at the same data and steps in all."""
    steps, study = config.train.sync_interval_steps, config.study
    rounds = max(1, round(study.rounds / scale))
    study.episodes_per_round = round(study.episodes_per_round * study.rounds / rounds)
    config.train.sync_interval_steps = round(steps * study.rounds / rounds)
    study.rounds = rounds


def _per_robot(config: RunConfig, _: str, value: bool) -> None:
    """Fixed time per robot: episodes in proportion to robots (the configured number is for 16)."""
    config.study.episodes_per_round = max(1, round(config.study.episodes_per_round * config.fleet.robots / 16))


_CHANGES = {"sync_scale": _scale_sync, "episodes_per_robot": _per_robot}
