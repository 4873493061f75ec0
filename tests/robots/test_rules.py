"""The referee of Phone Packaging, without a simulator."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim import turns
from cel_jax.robots.sim.rules import Referee, RuleParams
from tests.robots.scenes import Story

LYING = turns.about_x(np.pi / 2)


@pytest.fixture
def story() -> Story:
    return Story(Referee(RuleParams(no_progress_s=4.0, max_episode_s=60.0)))


def pack_until(story: Story, stage: int) -> Story:
    """Plays the trial without a fault until `stage` is the step to do."""
    deeds = (_case, _manual, _cable, _adapter, _handover, _stand_and_tip, _case_to_box, _phone, _lid, _close)
    for deed in deeds[:stage]:
        deed(story)
    assert story.referee.stage == stage, (story.referee.stage, story.referee.verdict)
    return story


def _case(s: Story) -> None:
    s.carry(L.RIGHT, L.CASE, *L.PAD_XY, 0.018)


def _manual(s: Story) -> None:
    s.carry(L.RIGHT, L.MANUAL, *L.PAD_XY, 0.027)


def _cable(s: Story) -> None:
    s.carry(L.RIGHT, L.CABLE, 0.426, 0.0, 0.016)


def _adapter(s: Story) -> None:
    s.hold(L.LEFT, L.ADAPTER)
    s.put(L.ADAPTER, 0.36, 0.02, 0.24)
    s.show(6)


def _handover(s: Story) -> None:
    s.hold(L.RIGHT, L.ADAPTER)
    s.hold(L.LEFT)
    s.show(6)


def _stand_and_tip(s: Story) -> None:
    s.carry(L.RIGHT, L.ADAPTER, 0.502, -0.02, 0.036)
    s.put(L.ADAPTER, 0.502, 0.01, 0.017, LYING)
    s.show(6)


def _case_to_box(s: Story) -> None:
    s.hold(L.RIGHT, L.CASE)
    s.show(3)
    s.put(L.CASE, 0.46, 0.0, 0.036)
    s.put(L.MANUAL, 0.46, 0.0, 0.045)
    s.hold(L.RIGHT)
    s.show(6)


def _brace(s: Story) -> None:
    s.hand(L.RIGHT, 0.46, -0.08, 0.04, 0.0)


def _phone(s: Story) -> None:
    _brace(s)
    s.put(L.PHONE, 0.46, 0.0, 0.055)
    s.show(6)


def _lid(s: Story) -> None:
    s.show(2)
    s.put(L.LID, 0.46, 0.17, 0.081)
    s.show(2)
    s.carry(L.LEFT, L.LID, 0.46, 0.017, 0.085)


def _close(s: Story) -> None:
    s.put(L.LID, 0.46, 0.0, L.BOX_RIM_Z)
    s.show(6)


def test_all_ten_steps_in_order_succeed(story: Story) -> None:
    pack_until(story, 10)
    assert story.referee.verdict.outcome is Outcome.SUCCESS


@pytest.mark.parametrize("stage,thing", [(0, L.MANUAL), (0, L.LID), (1, L.CABLE), (2, L.ADAPTER), (6, L.CABLE)])
def test_a_part_taken_before_its_turn_fails(story: Story, stage: int, thing: int) -> None:
    pack_until(story, stage).hold(L.RIGHT, thing)
    verdict = story.show(30)
    assert verdict.outcome is Outcome.FAILURE
    assert f"step {stage + 1}" in verdict.reason and "wrong order" in verdict.reason


def _empty_grasp(s: Story, thing: int) -> None:
    x, y, z = s.facts.position[thing]
    s.hand(L.RIGHT, x, y, z + 0.02, 0.08)
    s.show(2)
    s.hand(L.RIGHT, x, y, z + 0.02, 0.0)
    s.show(2)


def test_two_empty_grasps_may_be_retried_and_the_third_fails(story: Story) -> None:
    _empty_grasp(story, L.CASE)
    _empty_grasp(story, L.CASE)
    assert story.referee.verdict is None and story.referee.empty_grasps == 2
    _empty_grasp(story, L.CASE)
    assert story.referee.verdict.outcome is Outcome.FAILURE
    assert "3 empty grasps in a row" in story.referee.verdict.reason


def test_a_good_grasp_starts_the_count_again(story: Story) -> None:
    _empty_grasp(story, L.CASE)
    _empty_grasp(story, L.CASE)
    story.hand(L.RIGHT, *story.facts.tip[L.RIGHT], 0.08)
    story.hold(L.RIGHT, L.CASE)
    story.show(3)
    story.hold(L.RIGHT)
    _empty_grasp(story, L.CASE)
    assert story.referee.verdict is None and story.referee.empty_grasps == 1


def test_closing_far_from_the_part_is_no_grasp(story: Story) -> None:
    for opening in (0.08, 0.0) * 4:
        story.hand(L.RIGHT, 0.4, 0.0, 0.3, opening)
        story.show(2)
    assert story.referee.verdict is None and story.referee.empty_grasps == 0


def test_idling_fails_after_the_limit_and_not_before(story: Story) -> None:
    assert story.show(int(3.8 * 30)) is None
    verdict = story.show(int(0.5 * 30))
    assert verdict.outcome is Outcome.FAILURE and "no progress for 4 s" in verdict.reason


def test_coming_nearer_counts_as_progress(story: Story) -> None:
    for k in range(12):
        story.hand(L.RIGHT, 0.45, -0.315, 0.16 - 0.01 * k, 0.1)
        assert story.show(30) is None


def test_a_dropped_adapter_ends_the_handover_soon(story: Story) -> None:
    pack_until(story, 4).hold(L.LEFT)
    story.put(L.ADAPTER, 0.36, 0.02, 0.013, LYING)
    verdict = story.show(15)
    assert verdict.reason == "step 5 handover: adapter dropped"


def test_a_dropped_cable_within_reach_may_be_taken_again(story: Story) -> None:
    pack_until(story, 2).carry(L.RIGHT, L.CABLE, 0.35, -0.2, 0.012)
    assert story.show(20) is None
    _cable(story)
    assert story.referee.stage == 3


def test_losing_a_part_starts_the_search_for_progress_again(story: Story) -> None:
    pack_until(story, 2).carry(L.RIGHT, L.CABLE, 0.43, -0.12, 0.012)
    for k in range(8):
        story.hand(L.RIGHT, 0.43, -0.12, 0.30 - 0.02 * k, 0.1)
        assert story.show(30) is None


def test_a_part_that_falls_off_the_table_fails(story: Story) -> None:
    story.put(L.CASE, 0.9, -0.3, -0.1)
    assert "case dropped" in story.show(1).reason


def test_an_adapter_that_never_stood_fails(story: Story) -> None:
    pack_until(story, 5).hold(L.RIGHT)
    story.put(L.ADAPTER, 0.502, 0.01, 0.017, LYING)
    assert story.show(20).reason == "step 6 adapter placement: adapter dropped"


def test_phone_without_bracing_is_not_done(story: Story) -> None:
    pack_until(story, 7).put(L.PHONE, 0.46, 0.0, 0.055)
    story.show(12)
    assert story.referee.stage == 7
    _brace(story)
    story.show(6)
    assert story.referee.stage == 8


def test_a_box_that_slides_away_fails_and_says_whether_it_was_braced(story: Story) -> None:
    pack_until(story, 7).put(L.BOX, 0.46, -0.05, 0.0)
    assert story.show(2).reason == "step 8 phone into box: box slid away, not braced"


def test_earlier_work_destroyed_fails(story: Story) -> None:
    pack_until(story, 3).put(L.CABLE, 0.426, 0.2, 0.016)
    assert "cable moved out of its place" in story.show(30).reason


def test_a_box_closed_with_the_cable_out_of_place_fails() -> None:
    story = pack_until(Story(Referee(RuleParams())), 9)
    story.put(L.CABLE, 0.426, 0.0, 0.05)
    _close(story)
    assert story.referee.verdict.outcome is Outcome.FAILURE
    assert "contents out of place" in story.referee.verdict.reason


def test_time_limit() -> None:
    story = Story(Referee(RuleParams(no_progress_s=100.0, max_episode_s=1.0)))
    assert "time limit of 1 s" in story.show(40).reason


def test_a_verdict_is_final(story: Story) -> None:
    story.put(L.CASE, 0.9, -0.3, -0.1)
    first = story.show(1)
    story.put(L.CASE, *L.PAD_XY, 0.018)
    assert story.show(30) is first
