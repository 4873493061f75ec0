"""A second machine's robots join a running fleet by TCP with CURVE keys, leave it, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.fault_matrix_fleet import ROOT, GhostFleet
from cel_jax.robots.ghost_census import take_census
from cel_jax.robots.ghost_ledger import read_ledger

PORT = 5790


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_robots_join_over_tcp_and_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    flags = (f"--config.bus.keys={keys}", "--config.ghost.frames=60", "--config.ghost.tapes=2")
    fleet = GhostFleet(tmp_path, "main", 2, "--config.bus.tcp_host=127.0.0.1", f"--config.bus.tcp_port={PORT}", *flags)
    joined: subprocess.Popen[bytes] | None = None
    try:
        fleet.wait_all_acting()
        invite = ["--invite=lab2", "--config=ghosts", "--run=main", flags[0]]
        subprocess.run([sys.executable, "-m", "launch.join", *invite], cwd=ROOT, check=True, timeout=60)
        command = [
            sys.executable, "-m", "launch.join", f"--fleet=127.0.0.1:{PORT}", f"--keys={keys}/for-lab2", "--node=lab2",
            "--robot_numbers=200,201", f"--runs={tmp_path / 'other'}",
        ]  # fmt: skip
        joined = subprocess.Popen(command, cwd=ROOT)
        ledger = tmp_path / "other" / "main-lab2" / "ledger" / "lab2-robot-200.jsonl"
        fleet.wait(lambda: sum(fact["fact"] == "labelled" for fact in read_ledger(ledger)) >= 2, "episodes there")
        stored = "SELECT count(*) FROM episodes WHERE station LIKE 'lab2-%' AND store IS NOT NULL"
        fleet.wait(lambda: fleet.rows(stored)[0][0] >= 2, "episodes of the joined robots in the stores")
        joined.send_signal(signal.SIGINT)
        assert joined.wait(60) == 0
        left = "SELECT count(*) FROM stations WHERE name LIKE 'lab2-%' AND desired = 'offline' AND state = 'offline'"
        fleet.wait(lambda: fleet.rows(left)[0][0] == 2, "the joined stations to go offline")
        assert fleet.stop() == 0
    finally:
        if joined is not None and joined.poll() is None:
            joined.kill()
        fleet.close()
    census = take_census(fleet.run_dir, tmp_path / "other" / "main-lab2")
    assert census.clean and census.labelled > 4, census
    check_no_secret(tmp_path, keys)


def check_no_secret(folder: Path, keys: Path) -> None:
    """No secret key is in a log, in a run's folder or anywhere else than in the folder of keys."""
    secrets = [path.read_bytes().strip() for path in keys.glob("*.secret")]
    assert len(secrets) == 5
    for path in folder.rglob("*"):
        if path.is_file() and keys not in path.parents:
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), f"{path} holds a secret key"
