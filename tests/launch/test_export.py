"""launch.export: a policy's folder to openpi's layout."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from cel_jax.models.params_io import restore_openpi
from cel_jax.models.saving import save_policy
from tests.models.robots import tiny_policy

ROOT = pathlib.Path(__file__).resolve().parents[2]


def export(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.export", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_policy_goes_out_and_refusals_are_one_line(tmp_path: pathlib.Path) -> None:
    for mode, name in (("images", "p"), ("state", "s")):
        made = tiny_policy(mode, actions_per_token=1)
        parts = (made.config, made.params, made.norm_stats, made.features, made.policy_config)
        save_policy(tmp_path / name, *parts, "float32")
        if mode == "images":
            policy = made
    words = f"--policy={tmp_path / 'p'}", "--format=openpi", f"--out={tmp_path / 'o'}", "--asset_id=lab"
    done = export(*words)
    assert done.returncode == 0 and (tmp_path / "o/assets/lab/norm_stats.json").exists(), done.stderr
    back = restore_openpi(tmp_path / "o", policy.config)
    jax.tree.map(np.testing.assert_array_equal, back, jax.device_get(policy.params))
    again = export(*words)
    assert again.returncode == 2 and "--overwrite" in again.stderr and "Traceback" not in again.stderr
    poses = export(f"--policy={tmp_path / 's'}", f"--out={tmp_path / 'q'}")
    assert poses.returncode == 2 and "object poses" in poses.stderr
