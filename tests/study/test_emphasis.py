"""What the priorities emphasise: how many chunks, and which stages."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.study import emphasis


def test_effective_share_of_uniform_one_and_no_weight() -> None:
    assert emphasis.effective_share(np.full(8, 0.3)) == pytest.approx(1.0)
    assert emphasis.effective_share(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert emphasis.effective_share(np.array([3.0, 1.0])) == pytest.approx(16 / 10 / 2)
    assert emphasis.effective_share(np.zeros(4)) == 1.0


def test_stage_shares_add_up_to_one() -> None:
    shares = emphasis.stage_shares(np.array([1.0, 2.0, 5.0]), np.array([4, 0, 4]))
    assert shares == pytest.approx({0: 0.25, 4: 0.75})
    assert emphasis.stage_shares(np.zeros(2), np.array([0, 1])) == {}


def test_gathered_takes_each_chunk_with_the_stage_it_begins_in() -> None:
    stages = {"a": np.array([0, 0, 1, 1]), "b": np.array([5, 6])}
    weights = {"a": np.array([0.1, 0.2]), "b": np.array([0.3])}
    found_weights, found_stages = emphasis.gathered([("a", 1), ("b", 1), ("a", 3)], weights, stages)
    assert found_weights.tolist() == [0.1, 0.2, 0.3] and found_stages.tolist() == [0, 1, 6]


def test_an_empty_table_emphasises_nothing() -> None:
    weights, stages = emphasis.gathered([], {}, {})
    assert emphasis.effective_share(weights) == 1.0 and emphasis.stage_shares(weights, stages) == {}
