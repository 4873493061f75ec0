"""The spread of the priorities, event by event, from a store's own log."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.replay.distribution import all_weights, describe, distributions
from cel_jax.replay.event_log import EventLog
from tests.replay.episodes import make_episode
from tests.replay.test_store import CONFIG, deliver, open_store


def test_every_event_of_a_stores_log_is_described(tmp_path) -> None:
    store = open_store(tmp_path)
    for i in range(3):
        deliver(store, tmp_path, make_episode(f"s{i}", 40, seed=i))
    seen = []
    for i in range(5):
        deliver(store, tmp_path, make_episode(f"f{i}", 30, Outcome.FAILURE))
        store.apply_event(f"f{i}", [("s1", 5, 12)] if i != 3 else [])
        seen.append(all_weights(store._state.priorities))
    store.close()
    found = list(distributions(EventLog.open(tmp_path / "events.log").events, CONFIG.horizon))
    assert [one.failure for one in found] == [f"f{i}" for i in range(5)]
    for one, weights in zip(found, seen, strict=True):
        assert one.chunks == 120 and one.total == pytest.approx(weights.sum())
        assert one.quantiles[0] == weights.min() and one.quantiles[-1] == weights.max()
    assert found[0].effective_chunks > found[2].effective_chunks > found[4].effective_chunks
    assert (found[3].total, found[3].effective_chunks) == (found[2].total, found[2].effective_chunks)


def test_equal_vanished_and_single_weights() -> None:
    for weights in (np.full(200, 0.5), np.zeros(200)):
        one = describe(1, "f", weights)
        assert one.effective_chunks == pytest.approx(200) and one.top_percent_share == pytest.approx(0.01)
    single = describe(1, "f", np.eye(200)[3])
    assert single.effective_chunks == pytest.approx(1) and single.top_percent_share == pytest.approx(1)
