"""Retrieval on real robot episodes: a window of one episode finds the same phase in others.

A phase is told here by its place in the episode, from 0 to 1: people do this task (pick a bottle, put it down) at
different speeds, so that place is a rough, independent mark.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bench import retrieval_g1
from cel_jax.config import FertConfig
from cel_jax.fert import retrieval
from cel_jax.fert.ring import SuccessRing

DATA = Path(os.environ.get("CEL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "unitree_g1_v21"
STRIDE, WINDOW = 3, 30
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"no real episodes at {DATA}; set CEL_DATA")


def phase_errors(episodes: list[np.ndarray], top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """|place found - place asked| of the `top_k` matches of each query, and of random intervals."""
    config = FertConfig(top_k=top_k, h_pre_frames=0, h_post_frames=0)
    rng = np.random.default_rng(0)
    found, random = [], []
    for asked, episode in enumerate(episodes):
        ring = SuccessRing(26, 1_000_000)
        for index, other in enumerate(episodes):
            if index != asked:
                ring.add(str(index), other, STRIDE * len(other))
        for start in range(0, len(episode) - WINDOW, WINDOW // 2):
            place = (start + WINDOW / 2) / len(episode)
            for match in retrieval.retrieve(ring, episode[start : start + WINDOW], config):
                length = len(episodes[int(match.episode_id)])
                found.append(abs((match.left + match.right) / 2 / length - place))
                random.append(abs(rng.uniform(WINDOW / 2, length - WINDOW / 2) / length - place))
    return np.array(found), np.array(random)


def test_finds_the_same_phase_in_other_episodes() -> None:
    episodes = retrieval_g1.embedded(DATA)
    assert len(episodes) == 12
    found, random = phase_errors(episodes, top_k=3)
    print(f"median phase error {np.median(found):.3f}, random intervals {np.median(random):.3f}, n={len(found)}")
    assert np.median(found) < 0.5 * np.median(random)
    assert np.mean(found < 0.15) > 1.5 * np.mean(random < 0.15)


def test_finds_the_moment_that_people_marked() -> None:
    """From where the bottle is held on; the hand before it closes looks like the hand that has let go."""
    episodes = retrieval_g1.embedded(DATA)
    ways = retrieval_g1.searches()
    best, random = (
        np.concatenate([retrieval_g1.errors_s(episodes, ways[way], mark) for mark in (1, 2, 3)])
        for way in ("alignment, best 3 of 11", "random intervals")
    )
    assert len(best) == 3 * 12 * 3 and np.median(best) < 0.7 and np.median(random) > 2.0
