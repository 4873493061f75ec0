"""Grids: every cell once per seed, one change each, and equal data where only the interval changes."""

from __future__ import annotations

import dataclasses

import pytest

from cel_jax.config import RunConfig, to_dict
from cel_jax.study import arms, grid


def base() -> RunConfig:
    config = RunConfig()
    config.study.rounds, config.study.episodes_per_round, config.train.sync_interval_steps = 6, 240, 300
    return config


@pytest.mark.parametrize("name", sorted(grid.GRIDS))
def test_a_grid_names_each_cell_once_and_known_arms_alone(name: str) -> None:
    cells = grid.cells(name, seeds=3)
    assert len({cell.folder for cell in cells}) == len(cells) == 3 * len(grid.GRIDS[name])
    for cell in cells:
        arms.arm(cell.arm)
        config = grid.configured(base(), cell)
        assert {config.init.seed, config.fleet.seed, config.train.seed} == {cell.seed}


def test_arms_in_place_of_a_grid() -> None:
    assert [cell.folder for cell in grid.cells("main", 2, ("fert", "uniform"))] == [
        "fert-seed0", "uniform-seed0", "fert-seed1", "uniform-seed1",
    ]  # fmt: skip


def test_a_cell_changes_what_it_says_and_the_base_stays() -> None:
    config = base()
    before = to_dict(config)
    cell = grid.Cell("x", "fert", 0, {"fert.rho": 0.5})
    assert grid.configured(config, cell).fert.rho == 0.5
    assert to_dict(config) == before


@pytest.mark.parametrize("scale", [0.2, 0.5, 2.0, 3.0])
def test_another_interval_keeps_data_and_steps(scale: float) -> None:
    config = grid.configured(base(), grid.Cell("x", "fert", 0, {"sync_scale": scale}))
    study = config.study
    assert study.rounds * study.episodes_per_round == pytest.approx(6 * 240, rel=0.01)
    assert study.rounds * config.train.sync_interval_steps == pytest.approx(6 * 300, rel=0.01)
    assert study.rounds == round(6 / scale)


def test_a_fleet_of_another_size_has_the_same_time_per_robot() -> None:
    found = [grid.configured(base(), cell) for cell in grid.cells("figure7", 1)]
    assert {c.study.episodes_per_round / c.fleet.robots for c in found} == {240 / 16}
    assert [c.fleet.robots for c in found] == [4, 8, 16, 32, 64, 96]


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="table12"):
        grid.cells("table13", 1)
    with pytest.raises(ValueError, match="oracle"):
        arms.arm("oracel")
    with pytest.raises(ValueError, match=r"fert\.ro"):
        grid.configured(base(), grid.Cell("x", "fert", 0, {"fert.ro": 1}))


def test_controls_differ_from_fert_in_one_thing() -> None:
    config = base()
    uniform = arms.arm("uniform").prepare(config)
    assert uniform.fert == dataclasses.replace(config.fert, failure_retrieval=False)
    assert dataclasses.replace(uniform, fert=config.fert) == config
    demonstrations = arms.arm("demonstrations")
    assert not demonstrations.collects and demonstrations.prepare(config).fert == config.fert
