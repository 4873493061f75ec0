"""The command line: names, nearest names, and flags that contradict each other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cel_jax.config import FertConfig, PolicyConfig, ReplayConfig, RunConfig, TrainConfig, from_dict, to_dict
from launch import options

ROOT = Path(__file__).resolve().parents[2]


def run_fleet(*words: str, timeout_s: float = 60) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "launch.fleet", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)


def test_unknown_config_lists_names_and_the_nearest() -> None:
    with pytest.raises(options.OptionError, match=r"phone_packaging_state.*Did you mean phone_packaging"):
        options.config_path("phone_packagin")


def test_bare_name_becomes_a_file() -> None:
    assert options.resolve_argv(["x", "--config=phone_packaging"])[1].endswith("configs/phone_packaging.py")


def test_flag_and_value_that_disagree_are_an_error() -> None:
    found = run_fleet("--config=phone_packaging_state", "--rho=0.8", "--config.fert.rho=0.9")
    assert found.returncode == 2 and "disagree" in found.stderr


def test_a_value_whose_name_only_begins_like_a_flag_is_no_contradiction() -> None:
    found = run_fleet("--config=phone_packaging_state", "--robots=2", "--config.fleet.robots_are=nolab.robots:make")
    assert found.returncode == 2 and "disagree" not in found.stderr and "nolab.robots" in found.stderr


def test_an_unknown_labeller_is_named() -> None:
    found = run_fleet("--config=phone_packaging_state", "--config.fleet.labels=operater")
    assert found.returncode == 2 and "'operater': expected simulator or operator" in found.stderr


def test_unknown_config_on_the_command_line() -> None:
    found = run_fleet("--config=phone_pakaging")
    assert found.returncode == 2 and "Did you mean phone_packaging" in found.stderr


def test_first_line_within_three_seconds() -> None:
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.fleet", "--help"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = time.monotonic() - start
    process.communicate(timeout=60)
    assert line.startswith("cel_jax") and seconds < 3


def test_paper_defaults() -> None:
    """Table 5 of the paper."""
    fert, train, replay = FertConfig(), TrainConfig(), ReplayConfig()
    assert (fert.query_frames, fert.endpoint_offset_frames, fert.top_k) == (90, 10, 10)
    assert (fert.h_pre_frames, fert.h_post_frames, fert.rho, fert.stride_frames) == (30, 30, 0.88, 3)
    assert (train.batch_size, train.peak_lr, train.warmup_steps, train.decay_steps) == (1024, 2.5e-5, 80, 10_000)
    assert (train.clip_norm, train.sync_interval_steps) == (4.0, 500)
    assert (replay.window_frames, replay.min_frames, replay.w_init) == (350_000, 60_000, 0.5)
    assert PolicyConfig().action_horizon == 30


def test_config_round_trip_and_unknown_field() -> None:
    config = RunConfig(name="x")
    assert from_dict(to_dict(config)) == config
    with pytest.raises(ValueError, match=r"config.fert: unknown fields \['rhoo'\]"):
        from_dict({"fert": {"rhoo": 1}})
