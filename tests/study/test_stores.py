"""The controls' stores: demonstrations as chunks, and targets by the true failing stage."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from cel_jax.data.demonstrations import Demonstration
from cel_jax.data.episode import Outcome
from cel_jax.study.stores import DemonstrationStore, OracleStore, stage_spans
from tests.replay.episodes import make_episode

HORIZON, FRAMES = 4, 12


def demonstration(name: str, seed: int) -> Demonstration:
    """action[t] = (t, seed); frames 5 and 6 are not to be learnt."""
    steps = np.arange(FRAMES)
    taught = np.ones(FRAMES, bool)
    taught[5:7] = False
    return Demonstration(
        id=name, task_prompt="x", state=np.stack([steps, steps], 1).astype(np.float32),
        action=np.stack([steps, np.full(FRAMES, seed)], 1).astype(np.float32), image_steps=np.zeros(0, np.int32),
        images={}, fps_hz=30.0, objects=np.zeros((FRAMES, 2, 9), np.float32), taught=taught,
    )  # fmt: skip


def test_chunks_of_demonstrations_begin_where_taught_and_end_before_a_deliberate_error() -> None:
    store = DemonstrationStore([demonstration("a", 1), demonstration("b", 2)], HORIZON)
    batch = store.sample(4000, seed=0)
    starts = collections.Counter(start for _, start in batch.keys)
    assert set(starts) == set(range(FRAMES)) - {5, 6}
    expected = 4000 / 10  # chi-square of 10 equal cells: 33.7 is passed once in 10,000 seeds
    assert sum((count - expected) ** 2 / expected for count in starts.values()) < 33.7
    for (name, start), actions, mask in zip(batch.keys, batch.actions, batch.action_mask, strict=True):
        length = next((t for t in range(HORIZON) if start + t in (5, 6, FRAMES)), HORIZON)
        assert mask.tolist() == [True] * length + [False] * (HORIZON - length)
        np.testing.assert_array_equal(actions[:length, 0], np.arange(start, start + length))
        assert set(actions[:length, 1]) == {1.0 if name == "a" else 2.0}


def test_demonstrations_answer_the_same_seed_with_the_same_chunks() -> None:
    store = DemonstrationStore([demonstration("a", 1)], HORIZON)
    assert store.sample(9, 3).keys == store.sample(9, 3).keys != store.sample(9, 4).keys
    assert store.next_experience(8) == []


def test_stages_are_spanned_from_their_first_to_their_last_frame() -> None:
    assert stage_spans(np.array([0, 0, 1, 0, 1, 2])) == {0: (0, 4), 1: (2, 5), 2: (5, 6)}


class Told:
    """A store that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[tuple[str, int, int]]]] = []

    def embedded(self, episode: str) -> None:
        pass

    def apply_event(self, failure: str, intervals: list[tuple[str, int, int]]) -> bool:
        self.events.append((failure, intervals))
        return True


def test_the_oracle_aims_at_the_stage_that_failed_whatever_was_retrieved() -> None:
    told = Told()
    oracle = OracleStore(told, top_k=3, seed=0)  # type: ignore[arg-type]
    for index in range(5):
        oracle.saw(make_episode(f"win-{index}", seed=index))
        oracle.embedded(f"win-{index}")
    failed = make_episode("fail", num_frames=13, outcome=Outcome.FAILURE)  # ends in stage 2 of stages of 5 frames
    oracle.saw(dataclasses.replace(failed))
    oracle.apply_event("fail", [("win-0", 0, 3)])
    ((name, targets),) = told.events
    assert name == "fail" and len({episode for episode, _, _ in targets}) == 3
    assert {(left, right) for _, left, right in targets} == {(10, 15)}


def test_the_oracle_waits_until_a_success_can_be_retrieved() -> None:
    told = Told()
    oracle = OracleStore(told, top_k=3, seed=0)  # type: ignore[arg-type]
    oracle.saw(make_episode("win"))
    oracle.saw(make_episode("fail", outcome=Outcome.FAILURE))
    oracle.apply_event("fail", [("win", 0, 3)])
    assert told.events == [("fail", [])]
