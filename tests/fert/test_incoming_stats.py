"""A robot whose data is not what the policy was trained with is reported, and nobody averages it away."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cel_jax.config import FertConfig
from cel_jax.data.normalize import NormStats
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.incoming_stats import MIN_EPISODES, WINDOW_EPISODES, IncomingStats
from cel_jax.fert.ingestion import Ingestion
from cel_jax.fert.ring import SuccessRing
from tests.fert.small_store import Notice, SmallStore

STATS = NormStats(
    np.zeros(3, np.float32), np.ones(3, np.float32), np.zeros(2, np.float32), np.ones(2, np.float32),
    np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32),
)  # fmt: skip


def episode(
    number: int, robot: str = "robot-1", shift: float = 0.0, spread: float = 1.0, kind: str = "success"
) -> Notice:
    rng = np.random.default_rng(number)
    state, objects = rng.normal(size=(60, 3)), rng.normal(size=(60, 2, 2))
    state[:, 1] += shift
    objects[:, 1, 0] *= spread
    steps = np.arange(60, dtype=np.int32)
    state, objects = state.astype(np.float32), objects.astype(np.float32)
    return Notice(kind, f"e{robot}{number}", steps, state, objects, {}, 60, robot)


def told(incoming: IncomingStats, episodes: list[Notice]) -> list[str]:
    return [text for one in episodes for text in incoming.add(one)]


def test_data_that_fits_is_not_reported() -> None:
    assert told(IncomingStats(STATS), [episode(i, f"robot-{i % 3}") for i in range(60)]) == []


def test_one_robot_among_many_is_named_once_with_its_dimension() -> None:
    incoming, others = IncomingStats(STATS), [episode(i, f"robot-{i % 8}") for i in range(80)]
    assert told(incoming, others) == []
    (found,) = told(incoming, [episode(i, "odd", shift=1.5, spread=4.0) for i in range(MIN_EPISODES + 4)])
    assert found.startswith("robot odd: state[1]: mean 0 expected, 1.5")
    assert "; objects[1, 0]: " in found and "std 1 expected, 4" in found
    narrow = IncomingStats(STATS)
    assert told(narrow, [episode(i, spread=0.1) for i in range(9)]) == []
    assert "objects[1, 0]" in told(narrow, [episode(i, spread=np.pi / 180 / 2) for i in range(WINDOW_EPISODES)])[0]


def test_a_robot_that_changes_during_a_run_is_noticed() -> None:
    incoming = IncomingStats(STATS)
    assert told(incoming, [episode(i) for i in range(5 * WINDOW_EPISODES)]) == []
    assert "state[1]" in told(incoming, [episode(i, shift=-1.5) for i in range(WINDOW_EPISODES)])[0]


def test_a_failures_last_seconds_are_no_sample_of_the_task_but_absurd_ones_are_reported() -> None:
    incoming = IncomingStats(STATS)
    assert told(incoming, [episode(i, shift=2.0, kind="failure") for i in range(20)]) == []
    (found,) = told(incoming, [episode(i, "odd", shift=40.0, kind="failure") for i in range(3)])
    assert "robot odd: state[1]: 40" in found and "standard deviations" in found


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_ingestion_reports_it(shift: float) -> None:
    store = SmallStore()
    store.add(*[episode(i, shift=shift) for i in range(6)])
    ingestion = Ingestion(
        store, SuccessRing(7, 10**6), Embedder(None, STATS), Decoder(), FertConfig(), incoming=IncomingStats(STATS)
    )
    report = ingestion.run(10)
    assert len(report.successes) == 6 and len(report.mismatches) == (shift > 0)
    assert dataclasses.asdict(report)["skipped"] == ()
