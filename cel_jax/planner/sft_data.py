"""From demonstrations to target turns: memory-dependent responses rewritten or masked, contexts as for the student.

The student's contexts come from replaying the responses through the student's harness, which has no memory tool: what
that harness sends is what the student would have received. The replay also checks that every call still executes.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cel_jax.planner.chat import ChatTemplate
from cel_jax.planner.demonstrations import MEMORY_TOOL, Demonstration
from cel_jax.planner.memory_dependence import is_memory_call, memory_entries, student_messages, text_of
from cel_jax.planner.recorder import PlannerCallError
from cel_jax.planner.records import CallRecord, Message
from cel_jax.planner.rewriting import Judge, JudgeUnavailable, Rewriter, Turn, rewrite
from cel_jax.planner.tool_harness import ToolHarness

JUDGE_SILENCE_LIMIT = 3  # unanswered turns in a row that end the run


@dataclasses.dataclass(frozen=True)
class TargetTurn:
    """One supervised response in the student's context. weight 0: only a context for others."""

    episode: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A response for the replay, and whether it teaches."""

    message: Message
    feedback: str | None
    teaches: bool


class TargetMaker:
    """Makes target turns of successful demonstrations. `counts` tells what became of every turn."""

    def __init__(
        self,
        mode: str,
        rewriter: Rewriter,
        judge: Judge,
        template: ChatTemplate,
        make_harness: Callable[[], ToolHarness],
    ) -> None:
        if mode not in ("rewrite", "mask"):
            raise ValueError(f"sft.mode {mode!r}; expected rewrite or mask")
        self._mode, self._rewriter, self._judge, self._template = mode, rewriter, judge, template
        self._harness = make_harness()
        self._silent = 0
        self.counts: collections.Counter[str] = collections.Counter()

    def targets(self, demonstrations: Sequence[Demonstration]) -> list[TargetTurn]:
        """The target turns of all successes, in order."""
        found: list[TargetTurn] = []
        for demonstration in demonstrations:
            self.counts["episodes"] += 1
            if demonstration.success:
                self.counts["successes"] += 1
                found += self._episode(demonstration)
        self.counts["targets"] = len(found)
        return found

    def _episode(self, demonstration: Demonstration) -> list[TargetTurn]:
        plan = self._plan(demonstration)
        prompts = replay(self._harness, demonstration, plan)
        if prompts is None:
            self.counts["replay_failed"] += 1
            return []
        return [
            self._target(demonstration.spec.episode, prompt, step.message)
            for prompt, step in zip(prompts, plan, strict=True)
            if step.teaches
        ]

    def _target(self, episode: str, prompt: Mapping[str, Any], message: Message) -> TargetTurn:
        call = message["tool_calls"][0]["function"]
        response = self._template.response_ids(message["content"], call["arguments"], call["name"])
        return TargetTurn(episode, self._template.prompt_ids(prompt["messages"], prompt["tools"]), response)

    def _plan(self, demonstration: Demonstration) -> list[_Planned]:
        """What the student should have said, turn by turn, without memory accesses."""
        memory: list[str] = []
        plan: list[_Planned] = []
        feedback = _feedbacks(demonstration.records)
        for record, response in zip(demonstration.records, demonstration.responses, strict=True):
            memory += [m for m in memory_entries(record.messages, MEMORY_TOOL) if m not in memory]
            if not is_memory_call(response, MEMORY_TOOL):
                context = text_of(student_messages(record.messages, MEMORY_TOOL))
                message, teaches = self._resolve(Turn(response, tuple(memory), context))
                plan.append(_Planned(message, feedback.get(response["tool_calls"][0]["id"]), teaches))
        return plan

    def _resolve(self, turn: Turn) -> tuple[Message, bool]:
        """(the response that the replay gives, whether it teaches)."""
        self.counts["turns"] += 1
        if not turn.flags:
            return turn.message, True
        self.counts["flagged"] += 1
        self.counts.update(f"flagged by {name}" for name in turn.flags)
        if self._mode == "mask":
            return turn.message, False
        rewritten = self._rewrite(turn)
        self.counts["rewritten" if rewritten else "rejected"] += 1
        return (rewritten, True) if rewritten else (turn.message, False)

    def _rewrite(self, turn: Turn) -> Message | None:
        """A judge that is silent once costs a turn; one that stays silent ends the run."""
        try:
            rewritten = rewrite(turn, self._rewriter, self._judge)
        except JudgeUnavailable:
            self._silent += 1
            self.counts["judge_silent"] += 1
            if self._silent >= JUDGE_SILENCE_LIMIT:
                raise
            return None
        self._silent = 0
        return rewritten


def _feedbacks(records: Sequence[CallRecord]) -> dict[str, str]:
    """Call id -> what the harness answered, as far as a later request shows it."""
    messages = [m for record in records for m in record.messages if m.get("role") == "tool"]
    return {str(m["tool_call_id"]): str(m["content"]) for m in messages}


def replay(
    harness: ToolHarness, demonstration: Demonstration, plan: Sequence[_Planned]
) -> list[Mapping[str, Any]] | None:
    """The requests that the student's harness sends when it gets these responses.

    None if a call is answered differently than in the demonstration, or if the episode does not succeed again.
    """
    requests: list[Mapping[str, Any]] = []

    def chat(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(requests) == len(plan):
            raise PlannerCallError("the demonstration has no further response")
        _compare(request, plan[len(requests) - 1] if requests else None)
        requests.append(request)
        return {"choices": [{"message": plan[len(requests) - 1].message}]}

    try:
        spec = demonstration.spec
        ended = harness.run(spec.task, spec.initial_state, spec.attempt, chat)
    except _Diverged:
        return None
    return requests if ended.status == "success" and len(requests) == len(plan) else None


class _Diverged(Exception):
    """The replay's harness answered something else."""


def _compare(request: Mapping[str, Any], before: _Planned | None) -> None:
    last = request["messages"][-1]
    if before is None or before.feedback is None or last.get("role") != "tool":
        return
    if last["content"] != before.feedback:
        raise _Diverged(f"{before.feedback!r} became {last['content']!r}")
