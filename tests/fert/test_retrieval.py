"""Queries, intervals, ties and the merge of several hosts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cel_jax.config import FertConfig
from cel_jax.fert import retrieval
from cel_jax.fert.retrieval import Match, Retrieved, extended, merge, retrieve
from cel_jax.fert.ring import SuccessRing

CONFIG = FertConfig(query_frames=15, top_k=4, h_pre_frames=5, h_post_frames=7)


def ring_of(episodes: dict[str, np.ndarray]) -> SuccessRing:
    ring = SuccessRing(next(iter(episodes.values())).shape[1], 10**9)
    for name, frames in episodes.items():
        ring.add(name, frames, 3 * len(frames) - 1)
    return ring


@given(st.integers(0, 400))
def test_query_is_equation_four_at_the_stride(num_frames):
    config = FertConfig()
    steps = retrieval.query_steps(num_frames, config)
    stop = max(0, num_frames - 10)
    start = max(0, stop - 90)
    assert len(steps) == -(-(stop - start) // 3)
    if len(steps):
        assert steps[-1] == stop - 1 and start <= steps[0] < start + 3 and set(np.diff(steps)) <= {3}


def test_a_full_query_has_thirty_frames_of_which_the_last_ends_a_third_of_a_second_early():
    steps = retrieval.query_steps(500, FertConfig())
    assert (len(steps), steps[0], steps[-1]) == (30, 402, 489) and retrieval.max_query_frames(FertConfig()) == 30


def test_observations_are_never_taken_from_the_future():
    steps = np.array([0, 3, 6, 9])
    assert retrieval.observed_rows(steps, np.array([2, 5, 6, 8, 30])).tolist() == [0, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="no observed frame"):
        retrieval.observed_rows(np.array([]), np.array([1]))


@given(st.integers(1, 300), st.data())
def test_extended_intervals_cover_the_coarse_ones_and_stay_inside(num_frames, data):
    coarse = len(retrieval.success_steps(num_frames, CONFIG))
    left = data.draw(st.integers(0, coarse - 1))
    right = data.draw(st.integers(left + 1, coarse))
    got = extended(Match("e", num_frames, 0.0, left, right), CONFIG)
    assert got.start == max(0, 3 * left - 5)
    assert got.stop == min(num_frames, min(num_frames, 3 * right) + 7)
    assert got.start <= 3 * left < got.stop <= num_frames


def test_the_matching_part_is_found_and_ranked_first():
    rng = np.random.default_rng(0)
    episodes = {f"e{i}": rng.normal(size=(40, 3)).astype(np.float32) for i in range(9)}
    ring = ring_of(episodes)
    best = retrieve(ring, episodes["e5"][20:25], CONFIG)
    assert len(best) == 4
    assert (best[0].episode_id, best[0].left, best[0].right, best[0].start, best[0].stop) == ("e5", 20, 25, 55, 82)
    assert [r.cost for r in best] == sorted(r.cost for r in best)


def test_ties_go_to_the_smaller_id_whatever_the_order_of_arrival():
    same = np.zeros((9, 2), np.float32)
    ring = ring_of({name: same for name in ["e9", "e2", "e7", "e1", "e5"]})
    assert [r.episode_id for r in retrieve(ring, same[:4], CONFIG)] == ["e1", "e2", "e5", "e7"]


def test_nothing_is_retrieved_without_a_query_or_an_eligible_success():
    ring = ring_of({"short": np.zeros((3, 2), np.float32)})
    assert retrieve(ring, np.zeros((0, 2), np.float32), CONFIG) == []
    assert retrieve(ring, np.zeros((4, 2), np.float32), CONFIG) == []
    assert retrieve(SuccessRing(2, 10), np.zeros((4, 2), np.float32), CONFIG) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_hosts_merged_equal_one_store(seed, hosts):
    """Whole-number frames have exact distances on every path of the code, so equality is exact, with ties."""
    rng = np.random.default_rng(seed)
    episodes = {f"e{i}": rng.integers(0, 3, (int(rng.integers(2, 30)), 1)).astype(np.float32) for i in range(16)}
    query = rng.integers(0, 3, (4, 1)).astype(np.float32)
    owner = rng.integers(0, hosts, len(episodes))
    parts = [{n: f for (n, f), o in zip(episodes.items(), owner, strict=True) if o == h} for h in range(hosts)]
    local = [retrieve(ring_of(part), query, CONFIG) for part in parts if part]
    assert merge(local, CONFIG.top_k) == retrieve(ring_of(episodes), query, CONFIG)


def test_nearest_frame_control_ends_at_the_nearest_frame():
    frames = np.arange(20, dtype=np.float32)[:, None]
    (got,) = retrieval.nearest_frame(ring_of({"e": frames}), frames[8:13], CONFIG)
    assert (got.left, got.right) == (8, 13)
    (early,) = retrieval.nearest_frame(ring_of({"e": frames}), frames[[9, 9, 9, 9, 1]], CONFIG)
    assert (early.left, early.right) == (0, 5)


def test_random_control_draws_eligible_intervals_of_the_query_length():
    ring = ring_of({**{f"e{i}": np.zeros((12, 1), np.float32) for i in range(6)}, "s": np.zeros((3, 1), np.float32)})
    draw = lambda seed: retrieval.random_intervals(  # noqa: E731
        ring, np.zeros((5, 1), np.float32), CONFIG, np.random.default_rng(seed)
    )
    assert draw(1) == draw(1)
    seen = [r for seed in range(40) for r in draw(seed)]
    assert {r.episode_id for r in seen} == {f"e{i}" for i in range(6)}
    assert {r.left for r in seen} == set(range(8)) and all(r.right - r.left == 5 for r in seen)
    assert isinstance(seen[0], Retrieved) and len(draw(0)) == 4
