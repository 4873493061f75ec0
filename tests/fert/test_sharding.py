"""Eight devices train what one trains; two processes with jax.distributed train what one process trains."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def train(network: str, out: pathlib.Path, processes: int, devices: int) -> dict[str, np.ndarray]:
    """`devices` in each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = dict(os.environ, XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}", JAX_PLATFORMS="cpu")
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fert.distributed_training", network, out, str(processes), str(i), str(port)],
            cwd=ROOT,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    try:
        errors = [process.communicate(timeout=200)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * processes, errors[0][-3000:]
    with np.load(out) as stored:
        return dict(stored)


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"cut", "devices"}:
        np.testing.assert_allclose(ours[name], theirs[name], atol=atol, err_msg=name)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: pathlib.Path) -> None:
    two = train("toy", tmp_path / "two.npz", processes=2, devices=4)
    one = train("toy", tmp_path / "one.npz", processes=1, devices=8)
    assert two["devices"] == one["devices"] == 8 and two["cut"] == one["cut"] > 0
    assert_same(two, one, atol=1e-6)


@pytest.mark.slow
def test_pi0_on_eight_devices_equals_one(tmp_path: pathlib.Path) -> None:
    eight = train("pi0", tmp_path / "eight.npz", processes=1, devices=8)
    one = train("pi0", tmp_path / "one.npz", processes=1, devices=1)
    assert (eight["devices"], one["devices"], one["cut"]) == (8, 1, 0) and eight["cut"] > 0
    # One AdamW step is lr * sign(gradient) at first: where a gradient is rounding alone, its sign may differ.
    apart = sum(int((np.abs(eight[k] - one[k]) > 1e-5).sum()) for k in one if k.startswith("arr_"))
    total = sum(one[k].size for k in one if k.startswith("arr_"))
    assert abs(float(eight["loss"] - one["loss"])) < 1e-5 and apart < total * 1e-3, (apart, total)
