"""Chat messages to token ids and back: ChatML with tool calls in `<tool_call>` tags, as Qwen models write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from cel_jax.planner.records import Message

CALL_OPEN, CALL_CLOSE, END = "<tool_call>", "</tool_call>", "<|im_end|>"
CALL = re.compile(re.escape(CALL_OPEN) + r"(.*?)" + re.escape(CALL_CLOSE), re.DOTALL)
ROLES = ("system", "user", "assistant", "tool")


class MalformedCall(ValueError):
    """A response whose tool call cannot be read; the message can be shown to the planner."""


class Tokenizer(Protocol):
    """What a template needs."""

    @property
    def end_id(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, specials: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ChatTemplate:
    """Renders prompts. list_tools False leaves the tools' descriptions out, for a model that knows its few tools."""

    def __init__(self, tokenizer: Tokenizer, list_tools: bool = True) -> None:
        self.tokenizer = tokenizer
        self._list_tools = list_tools

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[int, ...]:
        """The ids that the model continues. Raises ValueError for a message that is none."""
        ids: list[int] = []
        for index, message in enumerate(messages):
            role = message.get("role")
            if role not in ROLES:
                raise ValueError(f"message {index}: role {role!r}; expected one of {', '.join(ROLES)}")
            body = self._body(message)
            if index == 0 and role == "system" and tools and self._list_tools:
                body += self._tokens("\n\n" + describe_tools(tools))
            ids += self._head(role) + body + self._special(f"{END}\n")
        return tuple(ids + self._head("assistant"))

    def response_ids(self, text: str, arguments_json: str | None = None, name: str = "") -> tuple[int, ...]:
        """Ids of a response, the end token among them: what a teacher's turn teaches."""
        message: Message = {"role": "assistant", "content": text}
        if arguments_json is not None:
            message["tool_calls"] = [tool_call(name, arguments_json)]
        return tuple([*self._body(message), self.tokenizer.end_id])

    def _head(self, role: str) -> list[int]:
        return self._special(f"<|im_start|>{role}\n")

    def _special(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, specials=True)

    def _tokens(self, text: str) -> list[int]:
        """What others wrote can never open a turn or a call."""
        return self.tokenizer.encode(text, specials=False)

    def _body(self, message: Message) -> list[int]:
        if message["role"] == "tool":
            return self._special("<tool_response>") + self._tokens(_text(message)) + self._special("</tool_response>")
        ids = self._tokens(_text(message))
        for call in message.get("tool_calls") or ():
            ids += self._special(CALL_OPEN) + self._tokens(call_text(call)) + self._special(CALL_CLOSE)
        return ids

    def parse(self, ids: Sequence[int], call_prefix: str) -> Message:
        """The assistant message of response ids. A call that is no JSON stays in the text: the harness complains.

        call_prefix: makes the calls' ids unique.
        """
        ids = ids[:-1] if ids and ids[-1] == self.tokenizer.end_id else ids
        text = self.tokenizer.decode(ids)
        try:
            calls = [tool_call(*read_call(body), f"{call_prefix}-{i}") for i, body in enumerate(CALL.findall(text))]
        except MalformedCall:
            return {"role": "assistant", "content": text}
        message: Message = {"role": "assistant", "content": CALL.sub("", text) if calls else text}
        if calls:
            message["tool_calls"] = calls
        return message


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):  # the interface's other form: parts; text ones only
        other = [part.get("type") for part in content if part.get("type") != "text"]
        if other:
            raise ValueError(f"content parts of type {other}: this model reads text only")
        return "".join(part["text"] for part in content)
    return content or ""


def describe_tools(tools: Sequence[dict[str, Any]]) -> str:
    """The tools as lines of JSON."""
    lines = [json.dumps(tool["function"], separators=(",", ":")) for tool in tools]
    return "Tools, one a line. Call one as <tool_call>{JSON with name and arguments}</tool_call>.\n" + "\n".join(lines)


def tool_call(name: str, arguments_json: str, call_id: str = "call") -> dict[str, Any]:
    """A call in the interface's form; its arguments stay the text that they were."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments_json}}


def call_text(call: dict[str, Any]) -> str:
    """The call as the model writes it."""
    return f'{{"name":{json.dumps(call["function"]["name"])},"arguments":{call["function"]["arguments"]}}}'


_PARTS = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(\{.*\})\s*\}\s*', re.DOTALL)


def read_call(body: str) -> tuple[str, str]:
    """(name, arguments as the bytes that the model wrote). Raises MalformedCall."""
    match = _PARTS.fullmatch(body)
    if match is None:
        raise MalformedCall(f'expected {{"name": .., "arguments": {{..}}}}, got {body[:80]!r}')
    arguments(match.group(2))
    return match.group(1), match.group(2)


def arguments(text: str) -> dict[str, Any]:
    """A call's arguments. Raises MalformedCall unless they are one JSON object."""
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise MalformedCall(f"the arguments are no JSON ({error}): {text[:80]!r}") from error
    if not isinstance(values, dict):
        raise MalformedCall(f"the arguments must be a JSON object, got {text[:80]!r}")
    return values
