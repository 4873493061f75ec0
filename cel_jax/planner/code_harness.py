"""A harness of control code: each turn's response is a piece of restricted Python that calls the skills.

Unlike the tool harness it keeps the conversation, shortened, and ends with a score instead of a status.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from typing import Any

from cel_jax.planner.recorder import PlannerCallError
from cel_jax.planner.records import Message
from cel_jax.planner.sandbox import CodeResult, SandboxFailed, run_code
from cel_jax.planner.tabletop.interface import Skill, SkillError, Tabletop
from cel_jax.planner.tool_harness import Chat, Limits

_BLOCK = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class SandboxLimits:
    """Of one piece of code."""

    cpu_s: float = 2.0
    memory_bytes: int = 256 * 1024 * 1024
    deadline_s: float = 60.0


@dataclasses.dataclass(frozen=True)
class CodeEpisode:
    """How an episode ended. exception: what broke outside the planner, empty if nothing did."""

    task_name: str
    seed: int
    trial: int
    task_completed: bool
    exception: str
    blocks_run: int
    note: str = ""


class CodeHarness:
    """One episode at a time."""

    def __init__(self, table: Tabletop, limits: Limits, sandbox: SandboxLimits, keep_exchanges: int = 2) -> None:
        self.table, self._limits, self._sandbox, self._keep = table, limits, sandbox, keep_exchanges

    def run(self, task: str, initial_state: int, attempt: int, chat: Chat) -> CodeEpisode:
        """Resets the table and lets the planner write code until the task ends or a limit is reached."""
        self.table.reset(task, initial_state, attempt)
        end = lambda exception, turns, note: CodeEpisode(  # noqa: E731
            task, initial_state, attempt, self.table.success, exception, turns, note
        )
        exchanges: list[tuple[Message, Message]] = []
        start = time.monotonic()
        for turn in range(self._limits.max_turns):
            if self.table.finished or time.monotonic() - start > self._limits.max_episode_s:
                return end("", turn, "" if self.table.finished else "time limit")
            try:
                message = dict(chat({"messages": self._messages(exchanges)})["choices"][0]["message"])
                feedback = self._execute(str(message.get("content") or ""))
            except PlannerCallError as error:
                overflow = error.kind == "context_length_exceeded"
                return end("" if overflow else str(error), turn, str(error))
            except SandboxFailed as error:
                return end(str(error), turn, str(error))
            exchanges.append((message, {"role": "user", "content": feedback}))
        return end("", self._limits.max_turns, "" if self.table.finished else "turn limit")

    def _messages(self, exchanges: list[tuple[Message, Message]]) -> list[Message]:
        """First the skills and the instruction; then the last exchanges, the scene as it is now at the end."""
        signatures = "\n".join(map(_signature, self.table.skills))
        system = f"Control the robot with Python code. Functions:\n{signatures}"
        kept = exchanges[-self._keep :] if self._keep else []
        recent = [message for pair in kept for message in pair]
        scene = {"role": "user", "content": f"{self.table.instruction()}\n{self.table.describe()}"}
        return [{"role": "system", "content": system}, *recent, scene]

    def _execute(self, text: str) -> str:
        match = _BLOCK.search(text)
        names = tuple(skill.name for skill in self.table.skills)
        limits = self._sandbox
        result = run_code(
            match.group(1) if match else text, names, self._call, limits.cpu_s, limits.memory_bytes, limits.deadline_s
        )
        return _feedback(result)

    def _call(self, name: str, args: list[Any], kwargs: Mapping[str, Any]) -> str:
        """Positional arguments by the skill's order. Raises SkillError, which the code sees as its error."""
        skill = next(skill for skill in self.table.skills if skill.name == name)
        if len(args) > len(skill.arguments):
            raise SkillError(f"{name} takes {len(skill.arguments)} arguments, got {len(args)}")
        given = dict(zip(skill.arguments, args)) | dict(kwargs)  # noqa: B905
        return self.table.act(name, given)


def _feedback(result: CodeResult) -> str:
    lines = list(result.printed) + ([f"Error: {result.error}"] if result.error else [])
    return "\n".join(lines)[-2000:] or "The code ran."


def _signature(skill: Skill) -> str:
    arguments = ", ".join(f"{name}: {'|'.join(values)}" for name, values in skill.arguments.items())
    return f"{skill.name}({arguments})  # {skill.description}"
