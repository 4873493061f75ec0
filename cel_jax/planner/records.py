"""What is kept of planner calls and of episodes: frozen records, and their JSON lines on disk."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import threading
from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]  # role, content, and tool_calls or tool_call_id as in the chat-completions interface

FINISH_REASONS = ("stop", "tool_calls", "length", "context_overflow", "error")


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a response is drawn. top_k 0 and top_p 1 switch the truncations off; temperature 0 takes the best token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    max_tokens: int = 64

    def __post_init__(self) -> None:
        good = self.temperature >= 0 and 0 < self.top_p <= 1 and self.top_k >= 0 and self.max_tokens > 0
        if not (good and math.isfinite(self.presence_penalty)):
            raise ValueError(
                f"sampling {self}: expected temperature >= 0, 0 < top_p <= 1, top_k >= 0, max_tokens > 0 and a finite "
                "presence penalty"
            )


@dataclasses.dataclass(frozen=True)
class CallRecord:
    """One planner request: the unit of training. logprobs: float32 values under the distribution sampled from."""

    episode: str
    call_index: int
    policy_version: int
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling: Sampling
    finish_reason: str
    started_s: float
    ended_s: float
    error: str = ""

    def __post_init__(self) -> None:
        where = f"record of episode {self.episode}, call {self.call_index}"
        if len(self.response_ids) != len(self.logprobs):
            raise ValueError(
                f"{where}: {len(self.response_ids)} response ids but {len(self.logprobs)} log-probabilities"
            )
        if self.finish_reason not in FINISH_REASONS:
            raise ValueError(f"{where}: finish reason {self.finish_reason!r}; expected one of {FINISH_REASONS}")
        if any(not math.isfinite(value) or value > 1e-3 for value in self.logprobs):
            raise ValueError(f"{where}: log-probabilities must be finite and at most 0")


@dataclasses.dataclass(frozen=True)
class Report:
    """The five fields of an episode (specification 3.4), under the episode's name at the proxy."""

    episode: str
    task: str
    initial_state: int
    attempt: int
    reward: float
    valid: bool


class RecordLog:
    """Records in memory, and on disk as JSON lines where a path is given. Safe from many threads."""

    def __init__(self, path: str | pathlib.Path | None = None) -> None:
        self._lock = threading.Lock()
        self._records: list[CallRecord] = []
        self._file = None if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115

    def append(self, record: CallRecord) -> None:
        with self._lock:
            self._records.append(record)
            if self._file is not None:
                self._file.write(json.dumps(dataclasses.asdict(record)) + "\n")

    def records(self) -> list[CallRecord]:
        """All records by episode and call."""
        with self._lock:
            return sorted(self._records, key=lambda r: (r.episode, r.call_index))

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def read_records(path: str | pathlib.Path) -> list[CallRecord]:
    """The inverse of `RecordLog`. Raises ValueError naming the line that is not a record."""
    with open(path, encoding="utf-8") as lines:
        return [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _parse(line: str, where: str) -> CallRecord:
    try:
        values = json.loads(line)
        values["sampling"] = Sampling(**values["sampling"])
        for name in ("messages", "tools", "prompt_ids", "response_ids", "logprobs"):
            values[name] = tuple(values[name])
        return CallRecord(**values)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a call record ({error}); was the file cut off?") from error


def by_episode(records: Iterable[CallRecord]) -> dict[str, list[CallRecord]]:
    """Episode -> its records in the order of its calls."""
    found: dict[str, list[CallRecord]] = {}
    for record in sorted(records, key=lambda r: (r.episode, r.call_index)):
        found.setdefault(record.episode, []).append(record)
    return found
