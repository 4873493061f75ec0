"""Which of a teacher's responses depend on memory that the student will not have (specification 4.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cel_jax.planner.records import Message

KEYWORDS = (
    "memory",
    "memories",
    "notes",
    "noted",
    "remember",
    "recall",
    "recalled",
    "previous attempt",
    "earlier trial",
)
RUN_WORDS = 8
_WORD = re.compile(r"[^\W_]+(?:[.'-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def words(text: str) -> list[str]:
    """Lower-case words and numbers, without punctuation."""
    return [word.lower() for word in _WORD.findall(text)]


def has_keyword(text: str) -> bool:
    """A keyword as a whole word, in any case."""
    spaced = f" {' '.join(words(text))} "
    return any(f" {keyword} " in spaced for keyword in KEYWORDS)


def repeats_memory(text: str, memory: Sequence[str], run: int = RUN_WORDS) -> bool:
    """Whether `run` consecutive words of the text stand in one memory entry."""
    mine = words(text)
    runs = {tuple(mine[i : i + run]) for i in range(len(mine) - run + 1)}
    for entry in memory:
        theirs = words(entry)
        if any(tuple(theirs[i : i + run]) in runs for i in range(len(theirs) - run + 1)):
            return True
    return False


def numbers_from_memory(text: str, memory: Sequence[str], context: str) -> set[str]:
    """Numbers of the text that memory holds and the student's context does not."""
    remembered = {number for entry in memory for number in _NUMBER.findall(entry)}
    return set(_NUMBER.findall(text)) & (remembered - set(_NUMBER.findall(context)))


def dependence(text: str, memory: Sequence[str], context: str) -> tuple[str, ...]:
    """The tests that flag the response; empty if none does. memory: the entries read so far in the episode."""
    found = {
        "keyword": has_keyword(text),
        "eight words": repeats_memory(text, memory),
        "number": bool(numbers_from_memory(text, memory, context)),
    }
    return tuple(name for name, flagged in found.items() if flagged)


def is_memory_call(message: Message, tool: str) -> bool:
    """An assistant message whose calls all go to the memory tool."""
    calls = message.get("tool_calls") or ()
    return bool(calls) and all(call["function"]["name"] == tool for call in calls)


def student_messages(messages: Sequence[Message], tool: str) -> list[Message]:
    """A context without memory accesses and their results; other calls of a mixed message stay."""
    removed: set[str] = set()
    kept: list[Message] = []
    for message in messages:
        if message.get("role") == "tool" and message.get("tool_call_id") in removed:
            continue
        calls = list(message.get("tool_calls") or [])
        removed |= {str(call["id"]) for call in calls if call["function"]["name"] == tool}
        if is_memory_call(message, tool):
            continue
        kept.append(_without(message, tool) if calls else message)
    return kept


def _without(message: Message, tool: str) -> Message:
    calls: list[dict[str, Any]] = [c for c in message["tool_calls"] if c["function"]["name"] != tool]
    return {**message, "tool_calls": calls}


def memory_entries(messages: Sequence[Message], tool: str) -> list[str]:
    """What the memory tool answered within these messages."""
    asked = {c["id"] for m in messages for c in (m.get("tool_calls") or ()) if c["function"]["name"] == tool}
    return [str(m["content"]) for m in messages if m.get("role") == "tool" and m.get("tool_call_id") in asked]


def text_of(messages: Sequence[Message]) -> str:
    """All that the messages show, calls' arguments among it."""
    parts = [str(message.get("content") or "") for message in messages]
    parts += [c["function"]["arguments"] for m in messages for c in (m.get("tool_calls") or ())]
    return "\n".join(parts)
