"""Priorities against the literal update of equation (10), on every chunk."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.replay.priorities import MIN_SCALE, Interval, Priorities, draw_probabilities


class Literal:
    """Equation (10) as it is written: a dictionary of weights, sets of frames, every chunk at every event."""

    def __init__(self, horizon: int) -> None:
        self.horizon, self.weights, self.length = horizon, {}, {}

    def add(self, episode: str, starts: np.ndarray, num_frames: int, w_init: float) -> None:
        self.length[episode] = num_frames
        self.weights.update({(episode, int(start)): w_init for start in starts})

    def remove(self, episode: str) -> None:
        self.weights = {key: w for key, w in self.weights.items() if key[0] != episode}
        del self.length[episode]

    def apply(self, rho: float, intervals: list[Interval]) -> None:
        live = {i.episode: set(range(i.left, i.right)) for i in intervals if i.episode in self.length}
        if not live:
            return
        for (episode, start), weight in self.weights.items():
            frames = set(range(start, min(start + self.horizon, self.length[episode])))
            self.weights[episode, start] = rho * weight + len(frames & live.get(episode, set())) / len(frames)


def assert_equal(priorities: Priorities, literal: Literal) -> None:
    found = {
        (e, int(s)): w
        for e in priorities.episodes
        for s, w in zip(priorities.starts(e), priorities.weights(e), strict=True)
    }
    assert found.keys() == literal.weights.keys()
    for key, weight in found.items():
        assert weight == pytest.approx(literal.weights[key], rel=1e-11, abs=1e-300), key


def random_walk(seed: int, steps: int, rho: float, horizon: int, episodes: int, frames: int, check_every: int) -> int:
    rng = np.random.default_rng(seed)
    priorities, literal, lengths, made = Priorities(horizon), Literal(horizon), {}, 0
    for step in range(steps):
        move = rng.random()
        if len(lengths) < 2 or (move < 0.3 and len(lengths) < episodes):
            key, lengths_new = f"e{made}", int(rng.integers(1, frames))
            made += 1
            starts = np.flatnonzero(rng.random(lengths_new) < rng.choice([0.4, 1.0])).astype(np.int32)
            lengths[key] = lengths_new
            w_init = float(rng.choice([0.5, 0.0, 2.0]))
            priorities.add_episode(key, starts, lengths_new, w_init)
            literal.add(key, starts, lengths_new, w_init)
        elif move < 0.4:
            key = next(iter(lengths))  # the oldest, as the window evicts
            del lengths[key]
            priorities.remove_episode(key)
            literal.remove(key)
        else:
            names = [*lengths, "gone"]
            picked = rng.choice(len(names), min(len(names), int(rng.integers(0, 4))), replace=False)
            intervals = []
            for name in (names[i] for i in picked):
                left = int(rng.integers(0, lengths.get(name, 10)))
                intervals.append(Interval(name, left, int(rng.integers(left, lengths.get(name, 10))) + 1))
            priorities.apply(step, f"f{step}", rho, intervals)
            literal.apply(rho, intervals)
        if step % check_every == 0:
            assert_equal(priorities, literal)
    assert_equal(priorities, literal)
    return priorities.rescales


@pytest.mark.parametrize("seed", range(6))
def test_random_sequences_equal_the_literal_update(seed: int) -> None:
    rho = [0.88, 0.5, 1.0, 0.0, 0.999, 0.1][seed]
    rescales = random_walk(seed, 400, rho, horizon=[30, 1, 7, 3, 12, 5][seed], episodes=8, frames=60, check_every=10)
    assert rescales > 0 or rho > 0.99


@pytest.mark.slow
def test_tens_of_thousands_of_chunks_equal_the_literal_update() -> None:
    assert random_walk(9, 160, 0.5, horizon=30, episodes=40, frames=2500, check_every=80) > 0


def test_an_event_writes_only_what_it_overlaps() -> None:
    priorities = Priorities(10)
    for key in ("a", "b"):
        priorities.add_episode(key, np.arange(100, dtype=np.int32), 100, 0.5)
    updates = priorities.apply(1, "f", 0.88, [Interval("b", 40, 50)])
    assert [(u.episode, u.first, len(u.weights)) for u in updates] == [("b", 31, 19)]
    assert priorities.weights("b")[40] == pytest.approx(0.5 * 0.88 + 1.0)
    assert priorities.weights("b")[31] == pytest.approx(0.5 * 0.88 + 0.1)
    assert priorities.weights("a")[0] == pytest.approx(0.44)


def test_a_truncated_chunk_counts_its_own_frames() -> None:
    priorities = Priorities(30)
    priorities.add_episode("a", np.array([0, 98], np.int32), 100, 0.0)
    priorities.apply(1, "f", 0.88, [Interval("a", 99, 100)])
    np.testing.assert_allclose(priorities.weights("a"), [0.0, 0.5])


def test_no_match_changes_nothing() -> None:
    priorities = Priorities(10)
    priorities.add_episode("a", np.arange(20, dtype=np.int32), 20, 0.5)
    for intervals in ([], [Interval("evicted", 0, 5)]):
        assert priorities.apply(1, "f", 0.88, intervals) == []
        np.testing.assert_array_equal(priorities.weights("a"), 0.5)


def test_weights_survive_ten_thousand_events() -> None:
    """Steady hits reach 1 / (1 - rho); the unmatched decay to nothing without ever growing or turning NaN."""
    priorities = Priorities(1)
    priorities.add_episode("hit", np.array([0], np.int32), 1, 0.5)
    priorities.add_episode("old", np.array([0], np.int32), 1, 0.5)
    for number in range(10_000):
        priorities.apply(number, "f", 0.88, [Interval("hit", 0, 1)])
        assert MIN_SCALE <= priorities.scale <= 1.0
        assert priorities.stored("hit")[0] < 9 / MIN_SCALE
    assert priorities.weights("hit")[0] == pytest.approx(1 / 0.12)
    assert priorities.weights("old")[0] == 0.0
    assert 80 < 10_000 / priorities.rescales < 120


def test_explain_gives_every_event_and_the_weight() -> None:
    rng = np.random.default_rng(3)
    priorities = Priorities(8)
    priorities.add_episode("early", np.arange(30, dtype=np.int32), 30, 0.5)
    for number in range(300):
        if number == 100:
            priorities.add_episode("late", np.arange(0, 30, 3, dtype=np.int32), 30, 0.5)
        left = int(rng.integers(0, 29))
        priorities.apply(number + 1, f"f{number}", 0.88, [Interval("late" if number > 150 else "early", left, 30)])
    for episode, start, since in (("early", 17, 300), ("late", 12, 200)):
        events = priorities.explain(episode, start)
        assert len(events) == 1 + since and events[0].kind == "insert"
        index = int(np.searchsorted(priorities.starts(episode), start))
        assert events[-1].weight == pytest.approx(priorities.weights(episode)[index], rel=1e-11)
        assert events[-1].cause == "f299"
    with pytest.raises(KeyError, match="no chunk from frame 1"):
        priorities.explain("late", 1)


def test_bad_events_are_refused() -> None:
    priorities = Priorities(8)
    priorities.add_episode("a", np.arange(5, dtype=np.int32), 5, 0.5)
    with pytest.raises(ValueError, match="already"):
        priorities.add_episode("a", np.arange(5, dtype=np.int32), 5, 0.5)
    with pytest.raises(ValueError, match="two intervals"):
        priorities.apply(1, "f", 0.88, [Interval("a", 0, 2), Interval("a", 3, 4)])
    with pytest.raises(ValueError, match="is empty"):
        priorities.apply(1, "f", 0.88, [Interval("a", 2, 2)])
    np.testing.assert_array_equal(priorities.weights("a"), 0.5)


def test_probabilities() -> None:
    np.testing.assert_allclose(draw_probabilities(np.array([1.0, 3.0, 0.0]), 4.0, 3, 0.0), [0.25, 0.75, 0.0])
    np.testing.assert_allclose(draw_probabilities(np.array([1.0, 3.0, 0.0, 0.0]), 4.0, 4, 0.4), [0.25, 0.55, 0.1, 0.1])
    np.testing.assert_allclose(draw_probabilities(np.zeros(4), 0.0, 4, 0.0), 0.25)
