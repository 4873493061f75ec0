"""A script in the operator's place: it knows the page's HTTP interface alone."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Page:
    """The page's server as a process of its own."""

    def __init__(self, folder: Path, run: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "launch.console", f"--runs={folder}", f"--run={run}", f"--port={port}"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, line
        self.port = int(line.rsplit(":", 1)[1].strip().rstrip("/"))

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def ask(self, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        return ask(self.port, path, body)

    def order(self, name: str, **values: Any) -> dict[str, Any]:
        """Asserts that the order was followed."""
        status, said = self.ask(f"/api/{name}", {"author": "ann", **values})
        assert status == 200, said
        return said

    def tiles(self) -> dict[str, dict[str, Any]]:
        """station -> tile; empty while the desk is away."""
        status, said = self.ask("/api/tiles")
        return {tile["station"]: tile for tile in said["stations"]} if status == 200 else {}

    def episodes(self) -> dict[str, dict[str, Any]]:
        status, said = self.ask("/api/tiles")
        return {one["episode"]: one for one in said["episodes"]} if status == 200 else {}

    def wait_state(self, station: str, state: str, deadline_s: float = 60.0) -> dict[str, Any]:
        """The station's tile once it is in the state."""
        wait(lambda: self.tiles().get(station, {}).get("state") == state, f"{station} {state}", deadline_s)
        return self.tiles()[station]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def ask(port: int, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = "") -> Any:
    """(status, JSON answer). body: None, a JSON value, or bytes as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if body is not None else {}
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, data, {**given, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def wait(condition: Callable[[], Any], what: str, deadline_s: float = 60.0) -> None:
    ends_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < ends_s, f"no {what} within {deadline_s:g} s"
        threading.Event().wait(0.05)
