"""Rewrite-and-filter: a memory-dependent response gets other words; its tool calls stay byte for byte."""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol

from cel_jax.planner.chat import arguments
from cel_jax.planner.memory_dependence import dependence
from cel_jax.planner.records import Message

_SENTENCE = re.compile(r"[^.!?]+(?:[.!?](?!\d)|$)|[.!?]")
POST_LIMIT_BYTES = 4_000_000


class JudgeUnavailable(RuntimeError):
    """The judge gave no verdict in time; the message names the endpoint."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """A response, what its author had read in memory, and what the student sees."""

    message: Message
    memory: tuple[str, ...]
    context: str

    @property
    def flags(self) -> tuple[str, ...]:
        return dependence(str(self.message.get("content") or ""), self.memory, self.context)


class Rewriter(Protocol):
    """The response's text in words that need no memory."""

    def __call__(self, turn: Turn) -> str: ...


class Judge(Protocol):
    """Whether a rewritten response may teach. Raises JudgeUnavailable."""

    def __call__(self, turn: Turn, rewritten: Message) -> bool: ...


def rule_rewriter(turn: Turn) -> str:
    """Drops the sentences that depend on memory; where none is left, says what the calls do."""
    text = str(turn.message.get("content") or "")
    kept = [s.strip() for s in _SENTENCE.findall(text) if not dependence(s, turn.memory, turn.context)]
    return " ".join(s for s in kept if s) or " ".join(map(_plain, turn.message.get("tool_calls") or ()))


def _plain(call: dict[str, Any]) -> str:
    values = " ".join(str(value) for value in arguments(call["function"]["arguments"]).values())
    return f"Next: {call['function']['name']} {values}".rstrip() + "."


def rule_judge(turn: Turn, rewritten: Message) -> bool:
    """No test flags the new text, there is one, and the calls are the same bytes."""
    text = str(rewritten.get("content") or "")
    same = calls_of(rewritten) == calls_of(turn.message)
    return bool(text) and same and not dependence(text, turn.memory, turn.context)


def calls_of(message: Message) -> list[tuple[str, str]]:
    """(name, arguments as text) of every call."""
    return [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]


def rewrite(turn: Turn, rewriter: Rewriter, judge: Judge) -> Message | None:
    """The response with a new text and its calls untouched, or None where the judge refuses it."""
    rewritten = {**turn.message, "content": rewriter(turn)}
    return rewritten if judge(turn, rewritten) else None


Post = Callable[[str, bytes, float], bytes]


def post(url: str, body: bytes, deadline_s: float) -> bytes:
    """One HTTP POST of JSON. Raises OSError."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=deadline_s) as answer:
        return bytes(answer.read(POST_LIMIT_BYTES))


class ChatJudge:
    """Asks any chat endpoint, after the rules have passed. url: up to and with `/v1`."""

    QUESTION = (
        "A robot planner wrote the ORIGINAL with notes that its student will not have. Does the REWRITE follow from "
        "the CONTEXT alone and lead to the same CALLS? Answer yes or no."
    )

    def __init__(self, url: str, deadline_s: float, tries: int = 2, send: Post = post) -> None:
        self._url, self._deadline_s, self._tries, self._send = url.rstrip("/"), deadline_s, tries, send

    def __call__(self, turn: Turn, rewritten: Message) -> bool:
        return rule_judge(turn, rewritten) and self._ask(self._text(turn, rewritten))

    def _text(self, turn: Turn, rewritten: Message) -> str:
        parts = {"CONTEXT": turn.context, "ORIGINAL": turn.message.get("content"), "REWRITE": rewritten["content"],
                 "CALLS": json.dumps(calls_of(rewritten))}  # fmt: skip
        return "\n\n".join([self.QUESTION, *(f"{name}:\n{text}" for name, text in parts.items())])

    def _ask(self, text: str) -> bool:
        body = json.dumps({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}).encode()
        error: Exception | None = None
        for _ in range(self._tries):
            try:
                answer = json.loads(self._send(f"{self._url}/chat/completions", body, self._deadline_s))
                return _verdict(answer["choices"][0]["message"]["content"])
            except (OSError, urllib.error.URLError, ValueError, LookupError, TypeError) as raised:
                error = raised
        raise JudgeUnavailable(
            f"the judge at {self._url} gave no verdict in {self._tries} tries of {self._deadline_s} s ({error}); start "
            "it, or leave sft.judge_url empty for the rule-based judge"
        ) from error


def _verdict(text: str) -> bool:
    """Raises ValueError unless the answer begins with yes or no."""
    first = re.findall(r"[a-z]+", str(text).lower())[:1]
    if first not in (["yes"], ["no"]):
        raise ValueError(f"expected yes or no, got {str(text)[:60]!r}")
    return first == ["yes"]


def judge_for(url: str, deadline_s: float) -> Judge:
    """The judge that the configuration names."""
    return ChatJudge(url, deadline_s) if url else rule_judge
