"""Benchmarks: their JSON is valid, their targets are judged rightly, each has a quick form."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

from bench import all as bench_all
from bench import report
from bench.fleet_rate import figures, read_rates
from bench.report import Figure
from cel_jax.recovery import rundb

ALL = sorted([*bench_all.NEEDS, "all"])


def test_write_makes_json_with_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = report.write(
        "some", [Figure("speed", 80.0, "1/s", ">= 75", "peer", 70.5), Figure("n", 3, "")], "cmd", tmp_path
    )
    first, second = json.loads(path.read_text())
    assert first == {
        "figure": "speed", "value": 80.0, "unit": "1/s", "target": ">= 75", "peer": "peer", "peer_value": 70.5,
        "machine": first["machine"], "command": "cmd",
    }  # fmt: skip
    assert "cores" in first["machine"] and second["peer_value"] is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.json"]
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 4 and lines[1].index("value") == lines[2].index("80") and "met" in lines[2]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_not_finite_leaves_the_old_file(tmp_path: Path, value: float) -> None:
    path = report.write("some", [Figure("speed", 1.0, "1/s")], folder=tmp_path)
    before = path.read_text()
    with pytest.raises(ValueError, match="speed"):
        report.write("some", [Figure("speed", value, "1/s")], folder=tmp_path)
    assert path.read_text() == before


def test_targets() -> None:
    found = [report.meets(Figure("f", 75.0, "", target)) for target in ("", ">= 75", ">= 75.1", "<= 75", "<= 74")]
    assert found == [None, True, False, True, False]
    with pytest.raises(ValueError, match="target"):
        report.meets(Figure("f", 1.0, "", "75"))


def test_commands_name_no_folder_of_this_machine(tmp_path: Path) -> None:
    text = report.command("fleet_rate", [f"--policy={tmp_path}", "--quick", "--run_dir=runs/a"])
    assert text == f"python -m bench.fleet_rate --policy={tmp_path.name} --quick --run_dir=runs/a"
    assert os.uname().nodename not in report.machine()


@pytest.mark.parametrize("name", ALL)
def test_every_benchmark_has_main_and_quick(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"bench.{name}")
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0 and "--quick" in capsys.readouterr().out


def test_every_module_with_main_is_run_by_all() -> None:
    modules = Path(report.__file__).parent.glob("*.py")
    runnable = {path.stem for path in modules if "\ndef main(" in path.read_text()} - {"all"}
    assert runnable == {*bench_all.NEEDS, *bench_all.BY_HAND}


def test_rates_of_a_run(tmp_path: Path) -> None:
    """300 + 500 steps in ten seconds; the episode under way does not count."""
    (tmp_path / "config.json").write_text(json.dumps({"task": {"mode": "images"}, "fleet": {"robots": 4}}))
    db = rundb.open_db(tmp_path)
    worker = "INSERT INTO workers (worker, station, role, incarnation, pid, state, started_s, log)"
    db.execute(f"{worker} VALUES ('w', 's', 'home', 0, 1, 'ready', 90.0, '')")
    for name, start_s, end_s, steps in (("a", 100.0, 106.0, 300), ("b", 101.0, 110.0, 500), ("c", 109.0, None, None)):
        rundb.start_episode(db, name, "s", "w", "r", start_s)
        if end_s is not None and steps is not None:
            rundb.end_episode(db, name, steps, 1, end_s)
    rundb.set_value(db, "published_version", "7")
    db.close()
    rates = read_rates(tmp_path)
    assert (rates.episodes, rates.control_steps_s, rates.versions, rates.first_episode_s) == (2, 80.0, 7, 16.0)
    assert report.meets(figures(rates)[0]) is True
