"""A ghost's own account of what it did, independent of everything that the system counts.

One JSON line a fact, written with one call, so that a killed process leaves whole lines. Facts: connect, reset, act
(the first action of an episode), pause, stale, verdict, labelled, disconnect.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Ledger:
    """Appends to one station's ledger; every worker of the station goes on in the same file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._pid = os.getpid()

    def write(self, fact: str, **fields: Any) -> None:
        """time_s: the monotonic clock, common to the processes of a machine and deaf to clock jumps."""
        line = {"fact": fact, "time_s": round(time.monotonic(), 4), "pid": self._pid, **fields}
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The facts of one station, oldest first; a line cut off at the very end (power loss) is left out."""
    if not path.exists():
        return []
    whole = path.read_bytes()
    return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]


def read_ledgers(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Station -> facts, of a whole run."""
    return {path.stem: read_ledger(path) for path in sorted((run_dir / "ledger").glob("*.jsonl"))}
