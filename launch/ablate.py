"""Studies in simulation: arms and controls in lock-step, with the fleet's own learning code.

    python -m launch.ablate --config=phone_packaging_state --grid=main --seeds=3
    python -m launch.ablate --config=phone_packaging_state --arms=fert,uniform --seeds=1

Goes on where it stopped. Everything is in runs/<study>/run.db; the tables and pictures at its end are made from it, and
`--report` makes them again without running anything. `--list` names the grids and arms.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from launch import options
from launch.options import say

if TYPE_CHECKING:
    from cel_jax.study.grid import Cell


def define() -> None:
    """The flags of this entry point."""
    options.define("phone_packaging_state")
    flags.DEFINE_string("grid", "main", "a named grid of cells")
    flags.DEFINE_list("arms", [], "arms in place of a grid")
    flags.DEFINE_integer("seeds", 1, "start seeds: each has its own demonstrations and start policy", lower_bound=1)
    flags.DEFINE_string("runs", "runs", "folder of all runs")
    flags.DEFINE_string("study", "", "the study's folder there; default: <config>_<grid>")
    flags.DEFINE_bool("list", False, "name the grids and arms")
    flags.DEFINE_bool("report", False, "run nothing: tables and pictures of what the study has so far")


def main(argv: list[str]) -> int:
    options.begin(argv)
    config = options.run_config()
    say(f"study of {config.name}: loading jax")
    from cel_jax.study import arms, grid
    from cel_jax.study.runner import open_runner

    if flags.FLAGS.list:
        say(f"grids: {', '.join(grid.GRIDS)}")
        say("\n".join(f"{one.name}: {one.meaning}" for one in arms.ARMS.values()))
        return 0
    try:
        cells = grid.cells(flags.FLAGS.grid, flags.FLAGS.seeds, tuple(flags.FLAGS.arms))
        for cell in cells:
            arms.arm(cell.arm)
    except ValueError as error:
        raise options.OptionError(str(error)) from error
    folder = Path(flags.FLAGS.runs) / (flags.FLAGS.study or f"{config.name}_{flags.FLAGS.grid}")
    if not flags.FLAGS.report:
        with open_runner(config, folder, say) as runner:
            for cell in cells:
                runner.run(cell)
    _report(folder, cells)
    return 0


def _report(folder: Path, cells: list[Cell]) -> None:
    from cel_jax.study import pictures, pooled, results

    say(results.table(folder / "run.db", cells))
    say(pooled.table(folder / "run.db", cells))
    try:
        drawn = pictures.draw_all(folder / "run.db", cells, folder / "report")
    except ModuleNotFoundError as error:
        say(f"no pictures: {error.name} is missing; pip install 'cel-jax[report]'")
        return
    say(f"pictures: {', '.join(str(path) for path in drawn)}")


def cli() -> None:
    options.run(main, define)


if __name__ == "__main__":
    cli()
