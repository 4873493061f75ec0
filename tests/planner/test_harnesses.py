"""Two harnesses that are unlike each other on one table; neither knows that it trains anybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cel_jax.planner.adapters import from_code_harness, from_libero_pro, from_tool_harness
from cel_jax.planner.chat import tool_call
from cel_jax.planner.code_harness import CodeHarness, SandboxLimits
from cel_jax.planner.recorder import PlannerCallError
from cel_jax.planner.tabletop.teacher import Teacher
from cel_jax.planner.tabletop.text_world import TextTabletop
from cel_jax.planner.tool_harness import Limits, ToolHarness

TASK, LIMITS = "cable+adapter+case/open", Limits(max_turns=40, max_episode_s=60.0)


def answer(content: str = "", *calls: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": list(calls)}}]}


def teacher_chat(table: TextTabletop, seed: int) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    teacher = Teacher(table, seed)

    def chat(request: Mapping[str, Any]) -> dict[str, Any]:
        move = teacher.next_move()
        return answer(move.text, tool_call(move.name, move.arguments_json))

    return chat


def code_chat(table: TextTabletop, seed: int) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    teacher = Teacher(table, seed)

    def chat(request: Mapping[str, Any]) -> dict[str, Any]:
        move = teacher.next_move()
        return answer(f"```python\n{move.name}({', '.join(repr(v) for v in move.arguments.values())})\n```")

    return chat


def test_the_teacher_solves_the_tool_harness_and_its_episodes_repeat() -> None:
    table = TextTabletop()
    harness = ToolHarness(table, LIMITS)
    ended = [harness.run(TASK, state, 0, teacher_chat(table, state)) for state in range(20)]
    won = sum(e.status == "success" for e in ended)
    assert 8 <= won <= 20
    assert ended == [harness.run(TASK, state, 0, teacher_chat(table, state)) for state in range(20)]
    reports = [from_tool_harness(f"e{e.initial_state}", e) for e in ended]
    assert sum(r.reward for r in reports) == won and all(r.valid for r in reports)


def test_the_same_moves_as_code_end_the_same_way() -> None:
    table = TextTabletop()
    tools, code = ToolHarness(table, LIMITS), CodeHarness(table, LIMITS, SandboxLimits())
    for state in range(3):
        one = from_tool_harness("e", tools.run(TASK, state, 0, teacher_chat(table, state)))
        other = from_code_harness("e", code.run(TASK, state, 0, code_chat(table, state)))
        assert one == other


def test_older_exchanges_are_pruned_and_the_scene_is_always_present() -> None:
    table, seen = TextTabletop(), []
    chat = teacher_chat(table, 1)

    def watched(request: Mapping[str, Any]) -> dict[str, Any]:
        seen.append(request["messages"])
        return chat(request)

    ToolHarness(table, LIMITS, keep_exchanges=1).run(TASK, 1, 0, watched)
    assert len(seen) > 3 and [len(messages) for messages in seen[:3]] == [2, 4, 4]
    assert all(messages[1]["content"].startswith("Pack the ") for messages in seen)


@pytest.mark.parametrize(
    "reply,status",
    [
        (answer("I would rather not."), "malformed_calls"),
        (answer("", tool_call("pick", "{not json")), "malformed_calls"),
        (answer("", tool_call("fly", "{}")), "turn_limit"),
        (answer("", tool_call("done", "{}")), "failure"),
    ],
)
def test_bad_calls_are_the_planners_failure_and_never_a_crash(reply: dict[str, Any], status: str) -> None:
    ended = ToolHarness(TextTabletop(), Limits(max_turns=5)).run(TASK, 1, 0, lambda request: reply)
    assert ended.status == status
    report = from_tool_harness("e", ended)
    assert report.valid and report.reward == 0


@pytest.mark.parametrize("kind,valid", [("context_length_exceeded", True), ("server_error", False)])
def test_an_overflow_is_a_failure_and_a_broken_server_is_nobodys_fault(kind: str, valid: bool) -> None:
    def chat(request: Mapping[str, Any]) -> dict[str, Any]:
        raise PlannerCallError("no", kind=kind)

    ended = ToolHarness(TextTabletop(), LIMITS).run(TASK, 1, 0, chat)
    assert from_tool_harness("e", ended).valid is valid
    coded = CodeHarness(TextTabletop(), LIMITS, SandboxLimits()).run(TASK, 1, 0, chat)
    assert from_code_harness("e", coded).valid is valid


def test_a_libero_pro_episode_becomes_the_five_fields() -> None:
    ended = {"suite": "spatial", "perturbation": "swap", "task_id": 3, "init_state_id": 7, "trial": 2, "success": True}
    report = from_libero_pro("e", ended)
    assert (report.task, report.initial_state, report.attempt, report.reward) == ("spatial/swap/3", 7, 2, 1.0)
    with pytest.raises(ValueError, match="init_state_id"):
        from_libero_pro("e", {k: v for k, v in ended.items() if k != "init_state_id"})
