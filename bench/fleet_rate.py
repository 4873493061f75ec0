"""How fast a whole fleet collects: runs one for some minutes and reads its run.db.

    python -m bench.fleet_rate [--quick] [--minutes=5]                       object poses, the shipped start policy
    python -m bench.fleet_rate --policy=FOLDER                               images, with that start policy
    python -m bench.fleet_rate --run_dir=runs/NAME                           a run that exists; starts nothing

Control steps of ended episodes over the time from the first start to the last end: steps of episodes that are under
way at the end do not count, so short runs look slower than they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.report import Figure

NAME, RUN = "fleet_rate", "bench"
ROOT = Path(__file__).resolve().parent.parent
TARGET_STEPS_S = ">= 75"  # four robots with images on two cores
MARGIN_S = 600.0  # start, compilation and a clean stop


@dataclasses.dataclass(frozen=True)
class Rates:
    """What run.db says. first_episode_s: from the first worker's launch to the first ended episode."""

    mode: str
    robots: int
    episodes: int
    control_steps_s: float
    versions: int
    first_episode_s: float


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    if flags.run_dir:
        rates = read_rates(Path(flags.run_dir))
    else:
        with tempfile.TemporaryDirectory() as runs:
            run_fleet(runs, flags)
            rates = read_rates(Path(runs) / RUN)
    report.write(NAME, figures(rates), report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="default 5; 1.5 with --quick")
    parser.add_argument("--policy", default="", help="a start policy for images")
    parser.add_argument("--run_dir", default="", help="read this run instead of running one")
    flags = parser.parse_args(argv)
    flags.minutes = flags.minutes or (1.5 if flags.quick else 5.0)
    return flags


def run_fleet(runs: str, flags: argparse.Namespace) -> None:
    """Runs a fleet in a folder. Raises RuntimeError with its last lines where it fails."""
    config = "phone_packaging" if flags.policy else "phone_packaging_state"
    argv = [sys.executable, "-m", "launch.fleet", f"--config={config}", f"--minutes={flags.minutes}", "--noevaluate"]
    argv += [f"--runs={runs}", f"--run={RUN}"]
    argv += [f"--config.policy.checkpoint={Path(flags.policy).absolute()}"] if flags.policy else []
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60 * flags.minutes + MARGIN_S)
    if done.returncode:
        raise RuntimeError(f"launch.fleet ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def read_rates(run_dir: Path) -> Rates:
    """Raises ValueError where no episode of the run has ended."""
    path = run_dir / "run.db"
    config = json.loads((run_dir / "config.json").read_text())
    db = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)
    try:
        ended = "SELECT count(*), coalesce(sum(steps), 0), min(start_s), min(end_s), max(end_s) FROM episodes"
        count, steps, start_s, first_s, last_s = db.execute(f"{ended} WHERE end_s IS NOT NULL").fetchone()
        launched_s = db.execute("SELECT min(started_s) FROM workers").fetchone()[0]
        version = db.execute("SELECT value FROM run WHERE key = 'published_version'").fetchone()
    finally:
        db.close()
    if not count:
        raise ValueError(f"{run_dir.name}: no episode has ended; run longer (--minutes)")
    versions, rate = int(version[0]) if version else 0, steps / (last_s - start_s)
    return Rates(config["task"]["mode"], config["fleet"]["robots"], count, rate, versions, first_s - launched_s)


def figures(rates: Rates) -> list[Figure]:
    """The target is that of four robots with images."""
    target = TARGET_STEPS_S if rates.mode == "images" and rates.robots == 4 else ""
    where = f"{rates.robots} robots, {rates.mode}"
    real_time = "as many robots at 30 Hz"
    return [
        Figure(f"{where}: control steps", rates.control_steps_s, "1/s", target, real_time, 30.0 * rates.robots),
        Figure(f"{where}: episodes ended", rates.episodes, ""),
        Figure(f"{where}: policy versions published", rates.versions, ""),
        Figure(f"{where}: first episode ended after", rates.first_episode_s, "s"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
