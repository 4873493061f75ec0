"""The model-call boundary: every planner request passes here, over HTTP or from the same process, and is recorded."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cel_jax.planner.advantages import stable_hash
from cel_jax.planner.chat import ChatTemplate
from cel_jax.planner.records import CallRecord, Message, RecordLog, Sampling
from cel_jax.planner.sampler import ContextOverflow, Generation


class PlannerCallError(RuntimeError):
    """A request that got no response. status: the HTTP status; kind: the interface's error code."""

    def __init__(self, message: str, status: int = 500, kind: str = "server_error") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Engine(Protocol):
    """What draws responses: the sampler behind a batcher."""

    def generate(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Generation: ...

    def check_length(self, prompt: Sequence[int]) -> None: ...


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a backend gives back: the message, its ids and log-probabilities."""

    message: Message
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


class Backend(Protocol):
    """Answers one request. Raises PlannerCallError."""

    def complete(self, request: Mapping[str, Any], sampling: Sampling, name: str, seed: int) -> Reply: ...

    def pieces(self, reply: Reply) -> list[str]: ...


class LocalBackend:
    """Our template and sampler."""

    def __init__(self, template: ChatTemplate, engine: Engine) -> None:
        self.template, self._engine = template, engine

    def complete(self, request: Mapping[str, Any], sampling: Sampling, name: str, seed: int) -> Reply:
        prompt = self._prompt(request)
        try:
            self._engine.check_length(prompt)
        except ContextOverflow as error:
            raise PlannerCallError(str(error), 400, "context_length_exceeded") from error
        found = self._engine.generate(prompt, sampling, seed)
        message = self.template.parse(found.ids, name)
        finish = "tool_calls" if "tool_calls" in message and found.finish == "stop" else found.finish
        return Reply(message, tuple(prompt), found.ids, found.logprobs, finish)

    def _prompt(self, request: Mapping[str, Any]) -> tuple[int, ...]:
        try:
            return self.template.prompt_ids(request["messages"], request.get("tools") or ())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlannerCallError(f"the messages cannot be rendered: {error}", 400, "invalid_request_error") from error

    def pieces(self, reply: Reply) -> list[str]:
        """The text that each response id adds, for streaming; an unfinished character waits for its last byte, and the
        end token adds nothing.
        """
        tokenizer = self.template.tokenizer
        texts: list[str] = []
        shown = text = ""
        for end, token in enumerate(reply.response_ids, 1):
            if token != tokenizer.end_id:
                text = tokenizer.decode(reply.response_ids[:end]).removesuffix("\ufffd")
            texts.append(text[len(shown) :])
            shown = text
        return texts


class Recorder:
    """Gives every request its index and its seed, asks the backend, records what came. Safe from many threads.

    defaults: the run's sampling, which a request may override where `fixed` is False.
    """

    def __init__(
        self, backend: Backend, log: RecordLog, policy_version: int, defaults: Sampling, seed: int, fixed: bool = True
    ) -> None:
        self.backend, self.log, self.policy_version = backend, log, policy_version
        self._defaults, self._seed, self._fixed = defaults, seed, fixed
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}
        self._closed: set[str] = set()

    def close_episode(self, episode: str) -> None:
        """Requests that come after an episode's end (a harness that hung) are refused."""
        with self._lock:
            self._closed.add(episode)

    def call(self, episode: str, request: Mapping[str, Any]) -> tuple[CallRecord, Reply]:
        """One request of an episode. Raises PlannerCallError; a refused prompt is recorded with its error."""
        sampling = self._sampling(request)
        index = self._next_index(episode)
        started, name = time.time(), f"{episode}-{index}"
        try:
            reply = self.backend.complete(request, sampling, name, stable_hash(f"{self._seed}/{name}"))
        except PlannerCallError as error:
            reason = "context_overflow" if error.kind == "context_length_exceeded" else "error"
            self._record(episode, index, request, sampling, started, Reply({}, (), (), (), reason), str(error))
            raise
        return self._record(episode, index, request, sampling, started, reply, ""), reply

    def _next_index(self, episode: str) -> int:
        with self._lock:
            if episode in self._closed:
                raise PlannerCallError(f"episode {episode} is over; its calls are refused", 409, "episode_closed")
            index = self._calls.get(episode, 0)
            self._calls[episode] = index + 1
            return index

    def _record(
        self, episode: str, index: int, request: Mapping[str, Any], sampling: Sampling, started: float, reply: Reply,
        error: str,
    ) -> CallRecord:  # fmt: skip
        record = CallRecord(
            episode, index, self.policy_version, tuple(request.get("messages") or ()),
            tuple(request.get("tools") or ()), reply.prompt_ids, reply.response_ids, reply.logprobs, sampling,
            reply.finish_reason, started, time.time(), error,
        )  # fmt: skip
        self.log.append(record)
        return record

    def _sampling(self, request: Mapping[str, Any]) -> Sampling:
        if self._fixed:
            return self._defaults
        names = ("temperature", "top_p", "top_k", "presence_penalty", "max_tokens")
        given = {name: request[name] for name in names if request.get(name) is not None}
        if request.get("max_completion_tokens"):
            given["max_tokens"] = request["max_completion_tokens"]
        given["max_tokens"] = min(given.get("max_tokens", self._defaults.max_tokens), self._defaults.max_tokens)
        try:
            return dataclasses.replace(self._defaults, **given)
        except (ValueError, TypeError) as error:
            raise PlannerCallError(str(error), 400, "invalid_request_error") from error


def completion_body(record: CallRecord, reply: Reply) -> dict[str, Any]:
    """The interface's answer, with the ids and log-probabilities beside it."""
    usage = {"prompt_tokens": len(reply.prompt_ids), "completion_tokens": len(reply.response_ids)}
    choice = {
        "index": 0,
        "message": reply.message,
        "finish_reason": reply.finish_reason,
        "token_ids": list(reply.response_ids),
        "token_logprobs": list(reply.logprobs),
    }
    return {
        "id": f"chatcmpl-{record.episode}-{record.call_index}",
        "object": "chat.completion",
        "created": int(record.started_s),
        "model": f"planner-{record.policy_version}",
        "choices": [choice],
        "prompt_token_ids": list(reply.prompt_ids),
        "usage": usage | {"total_tokens": sum(usage.values())},
    }
