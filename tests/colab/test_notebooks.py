"""The notebooks run to the end, cell by cell, on a small recorded run that is made here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.alignment_reference import best_interval
from cel_jax.data.video import read_frames
from colab.alignment_path import best_path
from colab.pictures import bars, heat_map, side_by_side
from colab.small_run import make_small_run

FOLDER = Path(__file__).resolve().parents[2] / "colab"


def run_cells(name: str) -> dict:
    """The variables that the notebook's code leaves behind; an error names its cell."""
    scope: dict = {"__name__": "__notebook__"}
    for number, cell in enumerate(json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), scope)
    return scope


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return make_small_run(tmp_path_factory.mktemp("recorded") / "run", successes=3)


@pytest.fixture
def run(recorded: Path, tmp_path: Path, monkeypatch) -> Path:
    shutil.copytree(recorded, tmp_path / "run")
    monkeypatch.setenv("CEL_NOTEBOOK_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("CEL_NOTEBOOK_OUT", str(tmp_path / "out"))
    monkeypatch.chdir(FOLDER)
    return tmp_path / "out"


@pytest.mark.slow
def test_retrieval_demo(run: Path) -> None:
    scope = run_cells("retrieval_demo")
    assert {path.name for path in run.glob("*.*")} == {
        *(f"{name}.jpg" for name in ("failure", "matches", "distances", "priorities")),
        "matches.mp4",
    }
    video = list(read_frames(run / "matches.mp4", len(scope["asked"])))
    assert len(video) == 30 and video[0].shape == (64, 4 * 64 + 3 * 4, 3)
    assert len(scope["event"].retrieved) == 3 and scope["new"].max() > 1.0 and scope["new"].min() < 0.5


@pytest.mark.slow
def test_ablation_demo(run: Path) -> None:
    scope = run_cells("ablation_demo")
    assert (run / "decay.jpg").stat().st_size > 1000
    assert scope["in_stage"]["alignment"] > scope["in_stage"]["random"]
    assert scope["kept"][0.5] < scope["kept"][0.88] < scope["kept"][1.0]


@pytest.mark.parametrize("name", ["retrieval_demo", "ablation_demo"])
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_the_drawn_path_is_the_cheapest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        table = rng.random((int(rng.integers(1, 6)), int(rng.integers(6, 12))))
        path, best = best_path(table), best_interval(table)
        assert [row for row, _ in path] == list(range(len(table)))
        assert (path[0][1], path[-1][1] + 1) == (best.left, best.right)
        assert np.mean([table[cell] for cell in path]) == pytest.approx(best.cost)


def test_pictures() -> None:
    picture = heat_map(np.arange(6.0).reshape(2, 3), [(0, 1)], cell_px=2)
    assert (
        picture.shape == (4, 6, 3) and picture[0, 2].tolist() == [220, 40, 40] and picture[3, 5].tolist() == [255] * 3
    )
    drawn = bars(np.array([0.0, 1.0]), 1.0, height_px=10, width_px=20)
    assert (drawn[0, :5] == 255).all() and (drawn[0, -1] != 255).any()
    assert side_by_side([np.zeros((2, 3, 3), np.uint8), np.zeros((4, 1, 3), np.uint8)], gap=1).shape == (4, 5, 3)
