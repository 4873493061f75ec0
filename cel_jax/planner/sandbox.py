"""Runs a planner's control code in a process of its own, with limits; skills run here, on request."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

CHILD = pathlib.Path(__file__).with_name("sandbox_child.py")
CallSkill = Callable[[str, list[Any], Mapping[str, Any]], Any]
MAX_LINE_CHARACTERS = 1_000_000


class SandboxFailed(RuntimeError):
    """The sandbox itself could not work: infrastructure, not the planner."""


@dataclasses.dataclass(frozen=True)
class CodeResult:
    """What the code printed, and why it ended early (empty: it did not)."""

    printed: tuple[str, ...]
    error: str


def run_code(
    code: str, skills: tuple[str, ...], call_skill: CallSkill, cpu_s: float, memory_bytes: int, deadline_s: float
) -> CodeResult:
    """Runs to its end, or until a limit. call_skill: raises ValueError for a bad call, whose text the code gets.

    deadline_s: wall clock, skills included. Raises SandboxFailed if the process cannot be started.
    """
    command = [sys.executable, "-I", "-S", str(CHILD), str(max(1, round(cpu_s))), str(memory_bytes), *skills]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={},
            cwd="/",
        )  # fmt: skip
    except OSError as error:
        raise SandboxFailed(f"the sandbox process did not start: {error}") from error
    try:
        return _Session(child, call_skill, time.monotonic() + deadline_s).converse(code)
    finally:
        child.kill()
        child.communicate()


class _Session:
    """The talk with one child."""

    def __init__(self, child: subprocess.Popen[str], call_skill: CallSkill, end_s: float) -> None:
        self._child, self._call_skill, self._end_s = child, call_skill, end_s
        self._lines: queue.Queue[str] = queue.Queue(maxsize=1024)
        threading.Thread(target=self._read, daemon=True, name="sandbox-reader").start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        while line := self._child.stdout.readline(MAX_LINE_CHARACTERS):
            self._lines.put(line)
        self._lines.put("")

    def converse(self, code: str) -> CodeResult:
        self._send({"code": code})
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, self._end_s - time.monotonic()))
            except queue.Empty:
                return CodeResult((), "the code did not end in time")
            if not line:
                return CodeResult((), f"the code was stopped by a limit (exit {self._child.wait(5.0)})")
            message = json.loads(line)
            if "skill" not in message:
                return CodeResult(tuple(message["printed"]), message["error"])
            self._send(self._answer(message))

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"result": self._call_skill(message["skill"], message["args"], message["kwargs"])}
        except ValueError as error:
            return {"error": str(error)}

    def _send(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return  # it died; the reader's empty line says so
