"""Alignment against brute force in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.fert.sdtw import align
from tests.fert.brute_force import brute_align, margin, table64

N_MAX = 10


def pad(trajectories: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """[C, N_MAX, D] with garbage in the padding (never zeros: padding must not be read), and lengths."""
    out = np.full((len(trajectories), N_MAX, trajectories[0].shape[1]), 0.25, np.float32)
    for row, trajectory in enumerate(trajectories):
        out[row, : len(trajectory)] = trajectory
    return out, np.array([len(t) for t in trajectories], np.int32)


def run(query: np.ndarray, trajectories: list[np.ndarray], dtype=jnp.float32) -> list[tuple[float, int, int]]:
    """Align with the query padded to five frames, so that one compilation serves all cases."""
    padded, lengths = pad(trajectories)
    rows = np.full((5, query.shape[1]), 0.5, np.float32)
    rows[: len(query)] = query
    out = align(jnp.asarray(rows), jnp.asarray(padded, dtype), jnp.asarray(lengths), len(query))
    return [(float(c), int(le), int(r)) for c, le, r in zip(*map(np.asarray, out), strict=True)]


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
    rng = np.random.default_rng(0)
    frames = (rng.normal(size=(1, 64, 512)) * 30).astype(np.float32)
    cost, left, right = align(jnp.asarray(frames[0, 10:40]), jnp.asarray(frames), jnp.array([64]))
    assert np.isfinite(np.asarray(cost)).all()
    assert (int(left[0]), int(right[0])) == (10, 40)


def test_long_trajectories_do_not_overflow_the_index():
    frames = np.random.default_rng(1).normal(size=(1, 700, 3)).astype(np.float32)
    _, left, right = align(jnp.asarray(frames[0, 600:630]), jnp.asarray(frames), jnp.array([700]))
    assert (int(left[0]), int(right[0])) == (600, 630)


def test_two_frame_steps_are_taken_and_three_are_not():
    trajectory = np.zeros((9, 1), np.float32)
    trajectory[[0, 2, 4], 0] = 1
    assert run(np.ones((3, 1), np.float32), [trajectory])[0] == (0.0, 0, 5)
    gap = np.zeros((9, 1), np.float32)
    gap[[0, 3], 0] = 1
    assert run(np.ones((2, 1), np.float32), [gap])[0][0] == pytest.approx(0.5)
