"""launch.dry_run: a table and an exit code, nothing allocated."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def dry_run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.dry_run", "--config=phone_packaging", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_pi0_fits_one_h200_in_parts_and_not_a_small_card() -> None:
    pi0 = ("--config.policy.preset=pi0", "--config.policy.actions_per_token=1", "--config.train.batch_size=32")
    good = dry_run(*pi0, "--memory_gb=141")
    assert good.returncode == 0 and "3,238,048,528" in good.stdout and "it fits" in good.stdout, good.stderr
    bad = dry_run(*pi0, "--memory_gb=24")
    assert bad.returncode == 1 and "fsdp_devices" in bad.stdout
    wrong = dry_run(*pi0, "--config.train.remat=some")
    assert wrong.returncode == 2 and "wide" in wrong.stderr
