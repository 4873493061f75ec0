"""Runs every benchmark that fits this machine, one after the other, each in a process of its own.

python -m bench.all [--quick] [--only=simulator,policy]
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report

ROOT = Path(__file__).resolve().parent.parent
# benchmark -> the packages that it needs
NEEDS: dict[str, tuple[str, ...]] = {
    "alignment": ("jax",),
    "sdtw_gpu": ("jax",),
    "alignment_embedding": ("jax", "flax"),
    "replay_tables": (),
    "priorities": (),
    "planner_boundary": ("jax", "flax"),
    "retrieval_quality": ("jax", "flax", "mujoco"),
    "latency": ("zmq",),
    "simulator": ("mujoco",),
    "policy": ("jax", "flax", "mujoco"),
    "fleet_rate": ("jax", "flax", "mujoco", "zmq"),
}
# Root, many minutes, gigabytes of disk, a data set, a GPU to themselves, or flags of their own.
BY_HAND = ("planner", "physical_table", "fault_matrix", "incidents", "soak", "pi0_gpu", "pi0_restore", "retrieval_g1")
LEAST_CORES = {"fleet_rate": 2}
DEADLINE_S = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 1 where a benchmark failed; one that does not fit is named and skipped."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", default="")
    flags = parser.parse_args(argv)
    wanted = flags.only.split(",") if flags.only else list(NEEDS)
    unknown = sorted(set(wanted) - set(NEEDS))
    if unknown:
        parser.error(f"unknown benchmarks {unknown}; there are {sorted(NEEDS)}")
    failed = [name for name in wanted if not run(name, flags.quick)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run(name: str, quick: bool) -> bool:
    """Whether it ran well or does not fit."""
    if reason := unfit(name):
        print(f"{name}: skipped, {reason}\n", flush=True)
        return True
    argv = [sys.executable, "-m", f"bench.{name}", *(["--quick"] if quick else [])]
    return subprocess.run(argv, cwd=ROOT, timeout=DEADLINE_S).returncode == 0


def unfit(name: str) -> str:
    """Why a benchmark cannot run here, or ''."""
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    cores = os.cpu_count() or 1
    return f"{cores} core, it needs {LEAST_CORES[name]}" if cores < LEAST_CORES.get(name, 1) else ""


if __name__ == "__main__":
    raise SystemExit(main())
