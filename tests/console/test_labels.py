"""The life of a label: once only, undone within its window, then final; whatever the order of what people do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cel_jax.console import labels
from cel_jax.console.labels import LabelPhase, LabelRefused
from cel_jax.data.episode import Label, Outcome

DEADLINE_S = 30.0
STEPS = st.lists(
    st.tuples(st.sampled_from(["give", "undo", "settle", "close"]), st.floats(0.0, 12.0)), min_size=1, max_size=30
)


def said(now_s: float, outcome: Outcome = Outcome.SUCCESS) -> Label:
    return Label(outcome, "ann", now_s, "")


def step(state: labels.LabelState, what: str, now_s: float) -> labels.LabelState:
    if what == "give":
        return labels.give(state, said(now_s))
    if what == "undo":
        return labels.undo(state, now_s)
    if what == "close":
        return labels.close_early(state)
    return labels.settle(state, now_s, DEADLINE_S)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_order_of_events_breaks_a_label(steps: list[tuple[str, float]]) -> None:
    now_s, state = 0.0, labels.waiting("e-1", "robot-00", 0.0)
    for what, wait_s in steps:
        now_s += wait_s
        before = state
        try:
            state = step(state, what, now_s)
        except LabelRefused as error:
            assert "e-1" in str(error) and state is before
            waits = before.phase is LabelPhase.WAITING
            late = not waits and now_s - before.since_s >= labels.UNDO_S
            assert (what == "give" and not waits) or (
                what == "undo" and (waits or late or before.phase is LabelPhase.FINAL)
            )
            continue
        check(before, state, what, now_s)


def check(before: labels.LabelState, state: labels.LabelState, what: str, now_s: float) -> None:
    assert (state.label is None) == (state.phase is LabelPhase.WAITING)
    if before.phase is LabelPhase.FINAL:
        assert state == before, "what is final stays as it is"
    if before.label is not None and state.label is not None:
        assert state.label == before.label, "a label is never replaced without being undone"
    if before.phase is LabelPhase.PENDING and state.phase is LabelPhase.WAITING:
        assert what == "undo" and now_s - before.since_s < labels.UNDO_S
    if state.phase is LabelPhase.FINAL and before.phase is LabelPhase.PENDING and what != "close":
        assert now_s - before.since_s >= labels.UNDO_S


def test_nobody_labels() -> None:
    state = labels.waiting("e-1", "robot-00", 5.0)
    assert labels.settle(state, 34.9, DEADLINE_S) is state
    discarded = labels.settle(state, 35.0, DEADLINE_S)
    assert discarded.label == Label(Outcome.DISCARD, "deadline", 35.0, "no label")
    assert labels.undo(discarded, 40.0).phase is LabelPhase.WAITING, "somebody came after all"


@pytest.mark.parametrize(
    "outcome,author,reason,words",
    [
        ("won", "ann", "", "outcome"),
        (None, "ann", "", "outcome"),
        ("success", "", "", "author"),
        ("success", " ", "", "author"),
        ("success", "a" * 65, "", "author"),
        ("success", "a\nb", "", "author"),
        ("success", "deadline", "", "deadline's own"),
        ("success", "ann", 3, "reason"),
        ("success", "ann", "x" * 201, "reason"),
        ("discard", "ann", " ", "needs its reason"),
    ],
)
def test_what_is_no_label(outcome: object, author: object, reason: object, words: str) -> None:
    with pytest.raises(LabelRefused, match=words):
        labels.make_label(outcome, author, reason, 1.0)
