"""What `launch.fleet` refuses before it starts anything, in words that say what to type."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cel_jax.config import RunConfig, TaskConfig
from cel_jax.workers import wiring
from configs.phone_packaging_state import get_config
from launch import options, start_policy
from tests.launch.test_options import run_fleet


def test_changed_configuration_prints_the_difference_and_asks(tmp_path: Path) -> None:
    config = dataclasses.replace(get_config(), name="r")
    config.fert.rho = 0.5
    wiring.save_config(tmp_path / "r", config)
    found = run_fleet("--config=phone_packaging_state", f"--runs={tmp_path}", "--run=r")
    assert found.returncode == 2
    assert "fert.rho: 0.5 -> 0.88" in found.stderr and "--resume" in found.stderr


def test_missing_start_policy_is_named(tmp_path: Path) -> None:
    config = RunConfig(task=TaskConfig(mode="state"))
    config.policy.checkpoint = str(tmp_path / "nowhere")
    with pytest.raises(options.OptionError, match=r"nowhere: no policy there"):
        start_policy.prepare(tmp_path / "run", config)


def test_openpis_checkpoint_is_to_be_fitted_to_the_robot_first(tmp_path: Path) -> None:
    (tmp_path / "pi0_base" / "params").mkdir(parents=True)
    config = RunConfig(task=TaskConfig(mode="images"))
    config.policy.checkpoint = str(tmp_path / "pi0_base")
    with pytest.raises(options.OptionError, match=r"pi0_base is openpi's.*python -m launch.initialize .*checkpoint="):
        start_policy.prepare(tmp_path / "run", config)


def test_no_shipped_policy_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(options.OptionError, match=r"no start policy is shipped for phone_packaging_images.*--out"):
        start_policy.prepare(tmp_path / "run", RunConfig(task=TaskConfig(mode="images")))


def test_policy_of_another_observation_mode_is_refused(tmp_path: Path) -> None:
    config = dataclasses.replace(get_config())
    config.task.mode = "images"
    config.policy.checkpoint = str(start_policy.SHIPPED / "phone_packaging_state")
    with pytest.raises(options.OptionError, match=r"trained with state, this run has task.mode=images"):
        start_policy.prepare(tmp_path / "run", config)


def test_shipped_policy_fits_its_configuration_and_is_small(tmp_path: Path) -> None:
    start_policy.prepare(tmp_path / "run", get_config())
    features = wiring.load_features(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "init" / "policy" / "manifest.json").read_text())
    assert features.objects_shape == tuple(manifest["features"]["objects_shape"])
    assert sum(path.stat().st_size for path in (tmp_path / "run" / "init" / "policy").iterdir()) < 8_000_000


def test_reverb_asked_for_but_absent_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cel_jax.workers import fleet

    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    monkeypatch.delenv("CEL_PYTHON_REVERB", raising=False)
    config = get_config()
    config.replay.table = "reverb"
    with pytest.raises(FileNotFoundError, match="make setup"):
        fleet.store_environment(config)
    config.replay.table = "auto"
    assert fleet.store_environment(config) == "jax"
