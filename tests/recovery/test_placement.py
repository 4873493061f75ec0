"""Placement: this machine by default, Ray by name, nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from cel_jax.recovery.placement import LocalStarter, open_starter


def test_a_local_child_is_started_ended_and_asked(tmp_path: Path) -> None:
    starter = open_starter("local")
    child = starter.start("node-7", [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log")
    assert isinstance(starter, LocalStarter) and child.placed and child.poll() is None
    with pytest.raises(TimeoutError):
        child.wait(0.01)
    child.terminate()
    assert child.wait(10.0) == -15 == child.poll()


def test_an_unknown_placement_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'slurm': expected 'local' or 'ray'"):
        open_starter("slurm")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"pip install 'cel-jax\[ray\]'"):
        open_starter("ray")
