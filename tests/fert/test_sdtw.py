"""Alignment against brute force in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bench.alignment_reference import best_interval
from cel_jax.fert.sdtw import Alignment, Layout, align, nearest, squared_lengths
from tests.fert.brute_force import brute_align, margin, table64

N_MAX = 10


def lay_out(
    trajectories: list[np.ndarray], gap: int = 1, longest: int = N_MAX
) -> tuple[np.ndarray, np.ndarray, Layout]:
    """(rows, places, layout) with rubbish before, between and after the trajectories: what no layout names, counts for
    nothing, though its distances are small and its places say that a path may pass."""
    rubbish = [np.full((gap, trajectories[0].shape[1]), 0.25)]
    rows = np.concatenate([*(part for t in trajectories for part in (*rubbish, t)), *rubbish]).astype(np.float32)
    lengths = np.array([len(t) for t in trajectories], np.int32)
    offsets = (np.cumsum(lengths + gap) - lengths).astype(np.int32)
    places = np.full(len(rows), 7, np.int32)
    for offset, length in zip(offsets, lengths, strict=True):
        places[offset : offset + length] = np.arange(length)
    return rows, places, Layout(offsets, lengths)


def run(query: np.ndarray, trajectories: list[np.ndarray], dtype=jnp.float32) -> list[tuple[float, int, int]]:
    """Align with the query padded to five frames and the buffer to 400, so that one compilation serves all cases."""
    rows, places, layout = lay_out(trajectories)
    stored = np.full((max(400, len(rows)), rows.shape[1]), 0.25, np.float32)
    stored[: len(rows)] = rows
    places = np.pad(places, (0, len(stored) - len(rows)), constant_values=9)
    padded = np.full((1, 5, query.shape[1]), 0.5, np.float32)
    padded[0, : len(query)] = query
    frames, longest = jnp.asarray(stored, dtype), max(N_MAX, *layout.lengths.tolist())
    counts = jnp.array([len(query)], jnp.int32)
    out = align(jnp.asarray(padded), counts, frames, squared_lengths(frames), places, layout, longest)
    return [(float(c), int(le), int(r)) for c, le, r in zip(*(np.asarray(part[0]) for part in out), strict=True)]


@pytest.mark.parametrize("seed", range(25))
def test_integer_distances_match_brute_force_with_every_tie(seed):
    """One-dimensional whole numbers have exact distances, so ties are real and the answer must be exact."""
    rng = np.random.default_rng(seed)
    for size in range(1, 6):
        query = rng.integers(0, 3, (size, 1)).astype(np.float32)
        trajectories = [rng.integers(0, 3, (n, 1)).astype(np.float32) for n in rng.integers(1, N_MAX + 1, 16)]
        for got, trajectory in zip(run(query, trajectories), trajectories, strict=True):
            want = brute_align(table64(query, trajectory))
            assert got[1:] == want[1:]
            assert got[0] == pytest.approx(want[0], abs=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_random_embeddings_match_where_the_margin_allows(seed, dtype):
    """Costs to 2e-3; intervals exactly where float64 separates them by more than 2e-3, on the rounded embeddings."""
    rng = np.random.default_rng(100 + seed)
    decided = 0
    for size in range(1, 6):
        unit = [rng.normal(size=(n, 7)) for n in (size, *rng.integers(1, N_MAX + 1, 30))]
        unit = [np.sqrt(2) * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in unit]
        query, *trajectories = [np.asarray(jnp.asarray(x, dtype).astype(jnp.float32)) for x in unit]
        for got, trajectory in zip(run(query, trajectories, dtype), trajectories, strict=True):
            table = table64(query, trajectory)
            want = brute_align(table)
            assert got[0] == pytest.approx(want[0], abs=2e-3)
            if np.isfinite(want[0]) and margin(table, *want[1:]) > 2e-3:
                decided += 1
                assert got[1:] == want[1:]
    assert decided > 50


def test_one_frame_query_finds_the_nearest_frame():
    trajectory = np.array([[5.0], [1.0], [9.0], [1.0]], np.float32)
    assert run(np.array([[1.0]], np.float32), [trajectory]) == [(0.0, 1, 2)]


def test_equal_lengths_leave_one_path():
    trajectory = np.arange(5, dtype=np.float32)[:, None]
    assert run(trajectory + 2, [trajectory]) == [(2.0, 0, 5)]


def test_shorter_candidates_are_ineligible():
    short = np.zeros((4, 1), np.float32)
    assert run(np.zeros((5, 1), np.float32), [short]) == [(np.inf, 0, 0)]


def test_all_distances_equal_gives_the_first_frames():
    assert run(np.zeros((4, 1), np.float32), [np.zeros((9, 1), np.float32)]) == [(0.0, 0, 4)]


def test_identical_frames_never_give_nan():
    """Without the clamp the radicand of equal large vectors is slightly negative."""
    frames = (np.random.default_rng(0).normal(size=(64, 512)) * 30).astype(np.float32)
    ((cost, left, right),) = run(frames[10:15], [frames])
    assert np.isfinite(cost) and (left, right) == (10, 15)


def test_long_trajectories_do_not_overflow_the_index():
    frames = np.random.default_rng(1).normal(size=(700, 3)).astype(np.float32)
    assert [found[1:] for found in run(frames[600:605], [frames[:3], frames])] == [(0, 0), (600, 605)]


@pytest.mark.parametrize("seed", range(3))
def test_several_queries_of_several_lengths_at_once(seed):
    rng = np.random.default_rng(200 + seed)
    trajectories = [rng.integers(0, 3, (n, 1)).astype(np.float32) for n in rng.integers(1, N_MAX + 1, 12)]
    queries, counts = rng.integers(0, 3, (4, 5, 1)).astype(np.float32), np.array([5, 1, 3, 4], np.int32)
    rows, places, layout = lay_out(trajectories, gap=2)
    frames = jnp.asarray(rows)
    out = align(queries, counts, frames, squared_lengths(frames), places, layout, N_MAX)
    for q, count in enumerate(counts):
        for c, trajectory in enumerate(trajectories):
            cost, left, right = brute_align(table64(queries[q, :count], trajectory))
            assert (int(out.left[q, c]), int(out.right[q, c])) == (left, right)
            assert float(out.cost[q, c]) == pytest.approx(cost, abs=1e-6)


def test_the_nearest_come_first_and_equals_in_order():
    cost = np.array([[2.0, 1.0, np.inf, 1.0, 0.5]], np.float32)
    numbers = np.arange(5, dtype=np.int32)[None]
    rows, found = nearest(Alignment(cost, numbers, numbers + 10), 3)
    assert rows.tolist() == [[4, 1, 3]] and found.left.tolist() == [[4, 1, 3]]
    assert found.right.tolist() == [[14, 11, 13]] and found.cost.tolist() == [[0.5, 1.0, 1.0]]


def test_two_frame_steps_are_taken_and_three_are_not():
    trajectory = np.zeros((9, 1), np.float32)
    trajectory[[0, 2, 4], 0] = 1
    assert run(np.ones((3, 1), np.float32), [trajectory])[0] == (0.0, 0, 5)
    gap = np.zeros((9, 1), np.float32)
    gap[[0, 3], 0] = 1
    assert run(np.ones((2, 1), np.float32), [gap])[0][0] == pytest.approx(0.5)


def test_the_benchmarks_reference_equals_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(400):
        table = rng.integers(0, 4, (int(rng.integers(1, 6)), int(rng.integers(1, N_MAX)))).astype(float)
        got, want = best_interval(table), brute_align(table)
        assert (got.cost, got.left, got.right) == (pytest.approx(want[0]), *want[1:])
        assert got.margin == pytest.approx(margin(table, *want[1:])) or not np.isfinite(want[0])
