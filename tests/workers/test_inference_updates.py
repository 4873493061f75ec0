"""The thread that follows the learner's versions: what it cannot use is not passed over in silence."""

from __future__ import annotations

import threading

import pytest

from cel_jax.bus.errors import PeerLost
from cel_jax.workers import inference
from cel_jax.workers.inference import Updates


def follow(monkeypatch: pytest.MonkeyPatch, *answers: Exception) -> Updates:
    """Updates after the learner gave these answers and then the stop."""
    left, stop = list(answers), threading.Event()
    updates = Updates(None, 3, stop)  # type: ignore[arg-type]

    def fetch(*args: object, **kwargs: object) -> None:
        if not left:
            stop.set()
            return None
        raise left.pop(0)

    monkeypatch.setattr(inference, "POLL_S", 0.001)
    monkeypatch.setattr(inference, "fetch_blob", fetch)
    updates.follow(None)
    return updates


def test_a_learner_that_is_away_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(monkeypatch, PeerLost("gone"), PeerLost("gone")).newest() == (None, 3)


def test_a_dead_thread_ends_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="misshapen"):
        follow(monkeypatch, ValueError("leaf x is misshapen")).newest()
