"""Only what a student could have said teaches; tool calls stay byte for byte."""

from __future__ import annotations

import json

import pytest

from cel_jax.planner.chat import ChatTemplate
from cel_jax.planner.demonstrations import Demonstration, corpus, demonstrate
from cel_jax.planner.memory_dependence import dependence, has_keyword, student_messages
from cel_jax.planner.rewriting import ChatJudge, JudgeUnavailable, Turn, calls_of, rewrite, rule_judge, rule_rewriter
from cel_jax.planner.rollouts import Spec
from cel_jax.planner.sft_data import TargetMaker
from cel_jax.planner.tabletop.text_world import TextTabletop
from cel_jax.planner.tool_harness import Limits, ToolHarness
from cel_jax.planner.words import WordTokenizer, make_vocabulary

LIMITS = Limits(max_turns=24, max_episode_s=60.0)
MEMORY = ("In state 0 the manual slipped in 17 of 23 grasps from the top and held when it was pinched.",)


@pytest.fixture(scope="module")
def demonstrations() -> list[Demonstration]:
    tasks = ("cable+manual+phone/close", "adapter+case+manual/open")
    found = [
        demonstrate(TextTabletop(), Spec(task, state, 0), LIMITS, 1, 0) for task in tasks for state in range(11, 31)
    ]
    assert any(d.success for d in found) and not all(d.success for d in found)
    return found


def maker(mode: str, demonstrations: list[Demonstration]) -> TargetMaker:
    template = ChatTemplate(WordTokenizer(make_vocabulary(corpus(demonstrations))), list_tools=False)
    return TargetMaker(mode, rule_rewriter, rule_judge, template, lambda: ToolHarness(TextTabletop(), LIMITS, 1))


@pytest.mark.parametrize(
    "text,flags",
    [
        ("My notes say to pinch it.", ("keyword",)),
        ("It held when the manual slipped in 17 of 23 grasps from the top.", ("eight words", "number")),
        ("It failed 17 times.", ("number",)),
        ("Pick the manual with the left arm.", ()),
        ("A notebook is not a note.", ()),
    ],
)
def test_three_tests_find_what_depends_on_memory(text: str, flags: tuple[str, ...]) -> None:
    assert dependence(text, MEMORY, context="The manual lies on the left.") == flags


def test_a_number_that_the_student_sees_is_its_own() -> None:
    assert dependence("It failed 17 times.", MEMORY, context="17 parts.") == ()
    assert has_keyword("As I RECALL, it slips.") and not has_keyword("It recalls nothing.")


def test_rewritten_and_masked_targets_come_from_the_same_turns(demonstrations: list[Demonstration]) -> None:
    rewriting, masking = maker("rewrite", demonstrations), maker("mask", demonstrations)
    rewritten, masked = rewriting.targets(demonstrations), masking.targets(demonstrations)
    assert rewriting.counts["flagged"] == masking.counts["flagged"] > 0
    assert len(rewritten) - len(masked) == rewriting.counts["rewritten"]
    assert {t.episode for t in rewritten} == {d.spec.episode for d in demonstrations if d.success}


def test_no_target_or_context_shows_the_memory(demonstrations: list[Demonstration]) -> None:
    making = maker("rewrite", demonstrations)
    for target in making.targets(demonstrations):
        text = making._template.tokenizer.decode([*target.prompt_ids, *target.response_ids])
        assert "recall" not in text and "State 0" not in text and "state 0" not in text
        assert target.response_ids[-1] == making._template.tokenizer.end_id


def test_a_rewrite_changes_words_and_never_calls(demonstrations: list[Demonstration]) -> None:
    changed = 0
    for demonstration in demonstrations:
        for response in demonstration.responses:
            turn = Turn(response, MEMORY, "")
            found = rewrite(turn, rule_rewriter, rule_judge)
            if turn.flags and found:
                changed += 1
                assert json.dumps(calls_of(found)) == json.dumps(calls_of(response))
                assert found["content"] != response["content"]
    assert changed


def test_a_judge_that_does_not_answer_is_named() -> None:
    def silent(url: str, body: bytes, deadline_s: float) -> bytes:
        raise OSError("timed out")

    turn = Turn({"role": "assistant", "content": "Pick it.", "tool_calls": []}, (), "")
    with pytest.raises(JudgeUnavailable, match="example:1"):
        ChatJudge("http://example:1/v1", 0.1, send=silent)(turn, {**turn.message})


def test_a_student_context_loses_the_memory_calls_alone() -> None:
    call = lambda name, key: {"id": key, "type": "function", "function": {"name": name, "arguments": "{}"}}  # noqa: E731
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "a", "tool_calls": [call("recall", "1")]},
        {"role": "tool", "tool_call_id": "1", "content": "secret"},
        {"role": "assistant", "content": "b", "tool_calls": [call("recall", "2"), call("pick", "3")]},
        {"role": "tool", "tool_call_id": "2", "content": "secret"},
        {"role": "tool", "tool_call_id": "3", "content": "held"},
    ]
    kept = student_messages(messages, "recall")
    assert [m["content"] for m in kept] == ["go", "b", "held"]
    assert [c["id"] for c in kept[1]["tool_calls"]] == ["3"]
