"""The whole loop with real processes: workers are killed while it runs, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LABELLED = "SELECT count(*) FROM episodes WHERE outcome IS NOT NULL"
PUBLISHED = "SELECT value FROM run WHERE key = 'published_version'"
ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--config=phone_packaging_state", "--robots=2", "--replay=memory", "--noevaluate",
    "--config.replay.min_frames=300", "--config.train.batch_size=16", "--config.train.sync_interval_steps=4",
    "--config.train.checkpoint_interval_steps=4", "--run=fleet",
)  # fmt: skip


class Fleet:
    """A running `launch.fleet` and its run.db."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.run_dir = folder / "fleet"
        command = [sys.executable, "-m", "launch.fleet", *FLAGS, f"--runs={folder}", *more]
        self.log = open(folder / "log.txt", "a+")  # noqa: SIM115  kept open for the child
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=subprocess.STDOUT, text=True)

    def text(self) -> str:
        return Path(self.log.name).read_text()

    def one(self, query: str) -> float:
        if not (self.run_dir / "run.db").exists():
            return 0.0
        db = sqlite3.connect(f"file:{self.run_dir / 'run.db'}?mode=ro", uri=True, timeout=10)
        try:
            return float(db.execute(query).fetchone()[0] or 0)
        except sqlite3.OperationalError:
            return 0.0
        finally:
            db.close()

    def wait(self, condition: Callable[[], bool], what: str, deadline_s: float = 150.0) -> None:
        ends_s = time.monotonic() + deadline_s
        while not condition():
            assert self.process.poll() is None, f"the fleet ended while waiting for {what}:\n{self.text()[-3000:]}"
            assert time.monotonic() < ends_s, f"no {what} within {deadline_s} s:\n{self.text()[-3000:]}"
            self.process.poll()
            _pause()

    def pids(self, module: str) -> set[int]:
        """Workers of this run, by the module that they run."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                environ = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            mine = f"CEL_RUN_DIR={self.run_dir}".encode() in environ
            if mine and f"cel_jax.workers.{module}".encode() in words:
                found.add(int(folder.name))
        return found

    def kill_one(self, module: str) -> int:
        pid = min(self.pids(module))
        os.kill(pid, signal.SIGKILL)
        return pid


def _pause() -> None:
    threading.Event().wait(0.2)  # between two looks at a condition


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_workers_come_back_and_a_second_run_resumes(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "--minutes=30")
    try:
        fleet.wait(lambda: fleet.one(LABELLED) >= 4, "4 episodes")
        for module in ("environment", "inference", "store", "home"):
            bystanders = fleet.pids("environment")
            killed = fleet.kill_one(module)
            fleet.wait(lambda m=module, k=killed: fleet.pids(m) - {k} and k not in fleet.pids(m), f"new {module}")
            kept = fleet.pids("environment") & bystanders
            assert len(kept) >= len(bystanders) - (module == "environment"), "somebody else was stopped"
            before = fleet.one(LABELLED)
            fleet.wait(
                lambda b=before: fleet.one(LABELLED) > b + 1,
                f"episodes after the death of {module}",
            )
        fleet.wait(
            lambda: list((fleet.run_dir / "checkpoints").glob("[0-9]*/manifest.json")) != [], "a checkpoint", 300
        )
        fleet.kill_one("training")
        version = fleet.one(PUBLISHED)
        fleet.wait(lambda: fleet.one(PUBLISHED) > version, "a new version", 300)
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.process.wait(120) == 0, fleet.text()[-3000:]
    finally:
        if fleet.process.poll() is None:
            fleet.process.kill()
    check_ledger(fleet)
    check_resume(fleet, tmp_path)


def check_ledger(fleet: Fleet) -> None:
    """Every labelled episode is in the store or still in a spool; none is in both forms or twice."""
    db = sqlite3.connect(fleet.run_dir / "run.db")
    labelled = {row[0] for row in db.execute("SELECT id FROM episodes WHERE outcome IS NOT NULL")}
    store = fleet.run_dir / "experience" / "store-0"
    lines = [json.loads(line.split(" ", 1)[1]) for line in (store / "events.log").read_text().splitlines()]
    booked = [line["episode"] for line in lines if line["kind"] in ("success", "failure", "discard")]
    assert len(booked) == len(set(booked)), "an episode was booked twice"
    spooled = {path.stem for path in (fleet.run_dir / "spool").glob("*/*.labelled")}
    waiting = {path.stem for path in (store / "incoming").glob("*.episode")}
    assert labelled <= set(booked) | spooled | waiting, sorted(labelled - set(booked) - spooled - waiting)
    assert labelled, "the run labelled nothing"


def check_resume(fleet: Fleet, tmp_path: Path) -> None:
    """The same command goes on with the same checkpoint, store and versions."""
    before = fleet.one(LABELLED)
    version = fleet.one(PUBLISHED)
    again = Fleet(tmp_path, "--minutes=30")
    try:
        again.wait(lambda: again.one(LABELLED) > before, "episodes after the resume")
        again.wait(lambda: again.one(PUBLISHED) > version, "versions", 300)
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(120) == 0
    finally:
        if again.process.poll() is None:
            again.process.kill()
    logs = "".join(path.read_text() for path in (fleet.run_dir / "logs" / "training").glob("*.log"))
    assert "resumed at step" in logs
