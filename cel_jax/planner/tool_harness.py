"""A harness of tool calls: one call of a frozen skill a turn, the scene in the prompt, older exchanges pruned.

The harness owns its prompts, its tools and its control loop; training never changes them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from cel_jax.planner.chat import MalformedCall, arguments
from cel_jax.planner.recorder import PlannerCallError
from cel_jax.planner.records import Message
from cel_jax.planner.tabletop.interface import Skill, SkillError, Tabletop

Chat = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # a chat-completions request -> its answer's body

SYSTEM = "You pack parts into a box with two arms."
MALFORMED_LIMIT = 3  # unreadable calls in a row that end an episode


@dataclasses.dataclass(frozen=True)
class Limits:
    """When an episode ends at the latest."""

    max_turns: int = 100
    max_episode_s: float = 7200.0

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.max_episode_s <= 0:
            raise ValueError(f"{self}: expected at least one turn and more than 0 s")


@dataclasses.dataclass(frozen=True)
class ToolEpisode:
    """How an episode ended. status: `success`, `failure`, `turn_limit`, `time_limit`, `context_overflow`,
    `malformed_calls`, or `infrastructure`, which is nobody's fault.
    """

    task: str
    initial_state: int
    attempt: int
    status: str
    reason: str
    turns: int


class ToolHarness:
    """One episode at a time. memory: answers the tool `recall`, which only a teacher has; it costs no turn."""

    def __init__(
        self, table: Tabletop, limits: Limits, keep_exchanges: int = 1,
        memory: Callable[[Mapping[str, str]], str] | None = None,
    ) -> None:  # fmt: skip
        self.table, self._limits, self._keep, self._memory = table, limits, keep_exchanges, memory
        self.tools = [tool_schema(skill) for skill in table.skills]
        if memory is not None:
            self.tools.append(tool_schema(Skill("recall", "read the notes of earlier trials", {"topic": ()})))

    def run(self, task: str, initial_state: int, attempt: int, chat: Chat) -> ToolEpisode:
        """Resets the table and plays until the task ends or a limit is reached."""
        self.table.reset(task, initial_state, attempt)
        end = lambda status, reason, turns: ToolEpisode(task, initial_state, attempt, status, reason, turns)  # noqa: E731
        exchanges: list[tuple[Message, Message]] = []
        start, turns, malformed = time.monotonic(), 0, 0
        while not self.table.finished:
            if turns >= self._limits.max_turns:
                return end("turn_limit", f"{turns} turns", turns)
            if time.monotonic() - start > self._limits.max_episode_s:
                return end("time_limit", f"{self._limits.max_episode_s} s", turns)
            try:
                answer = chat({"messages": self._messages(exchanges), "tools": self.tools})
            except PlannerCallError as error:
                overflow = error.kind == "context_length_exceeded"
                return end("context_overflow" if overflow else "infrastructure", str(error), turns)
            message = dict(answer["choices"][0]["message"])
            feedback, readable, counts = self._execute(message)
            malformed = 0 if readable else malformed + 1
            turns += counts
            if malformed >= MALFORMED_LIMIT:
                return end("malformed_calls", feedback, turns)
            exchanges.append((message, {"role": "tool", "content": feedback, "tool_call_id": _call_id(message)}))
        return end("success" if self.table.success else "failure", "", turns)

    def _messages(self, exchanges: list[tuple[Message, Message]]) -> list[Message]:
        """The context of the next turn: the present scene, and the last exchanges only."""
        scene = f"{self.table.instruction()}\n{self.table.describe()}"
        kept = exchanges[-self._keep :] if self._keep else []
        recent = [message for pair in kept for message in pair]
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": scene}, *recent]

    def _execute(self, message: Message) -> tuple[str, bool, int]:
        """(feedback, whether the call could be read, turns that it costs)."""
        calls = list(message.get("tool_calls") or [])
        if len(calls) != 1:
            return f"Error: expected one tool call, got {len(calls)}.", False, 1
        function = calls[0]["function"]
        try:
            given = arguments(function["arguments"])
            if function["name"] == "recall" and self._memory is not None:
                return self._memory(given), True, 0
            return self.table.act(function["name"], given), True, 1
        except (MalformedCall, SkillError) as error:
            return f"Error: {error}.", isinstance(error, SkillError), 1


def _call_id(message: Message) -> str:
    calls = message.get("tool_calls") or ()
    return str(calls[0]["id"]) if calls else "none"


def tool_schema(skill: Skill) -> dict[str, Any]:
    """A skill in the interface's form."""
    values = {n: {"type": "string"} | ({"enum": list(v)} if v else {}) for n, v in skill.arguments.items()}
    parameters = {"type": "object", "properties": values, "required": list(skill.arguments)}
    return {
        "type": "function",
        "function": {"name": skill.name, "description": skill.description, "parameters": parameters},
    }
