"""The contract of `ChunkTable`, as functions of a table's maker: one suite for every table.

    python -m tests.replay.conformance reverb      # in an environment that has it; exit code 0 and a line per check

Statistical checks: Pearson's chi-square of counts against the probabilities at a false-alarm rate of 1e-6 each; with
fixed seeds the memory table cannot alarm by chance, the Reverb table (unseeded) does so once in a million checks.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from cel_jax.data.episode import Outcome
from cel_jax.replay.chunks import SourceError, chunk_starts
from cel_jax.replay.priorities import Interval, Priorities, WeightUpdate
from cel_jax.replay.table import ChunkTable, TableEmpty, make_table
from tests.replay.episodes import make_episode

H = 6
MakeTable = Callable[..., ChunkTable]


def raises(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), f"expected {text!r} in {error}"
        return
    raise AssertionError(f"expected {kind.__name__} with {text!r}")


def put(table: ChunkTable, key: str, num_frames: int, weights: object = 0.5, **kwargs) -> None:
    episode = make_episode(key, num_frames, **kwargs)
    starts = chunk_starts(episode, H)
    table.insert_episode(episode, starts, np.broadcast_to(np.asarray(weights, np.float64), starts.shape).copy())


def chi_square_alarm(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """True where counts contradict probabilities at 1e-6 (Wilson and Hilferty's normal approximation, z = 4.75)."""
    live = probabilities > 0
    if counts[~live].any():
        return True
    expected = probabilities[live] * counts.sum()
    assert expected.min() >= 5, "too few draws for the test to mean anything"
    freedom = live.sum() - 1
    chi2 = ((counts[live] - expected) ** 2 / expected).sum()
    if freedom == 0:
        return False
    z = ((chi2 / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return z > 4.75


def counts_of(table: ChunkTable, n: int, seed: int) -> np.ndarray:
    counts, keys = Counter(table.sample(n, seed).keys), table.keys()
    assert set(counts) <= set(keys)
    return np.array([counts[key] for key in keys])


def all_weights(table: ChunkTable) -> np.ndarray:
    return np.concatenate([table.weights(key) for key in table.episodes])


def check_batch_holds_the_frames(make: MakeTable) -> None:
    table = make(H)
    episodes = {key: make_episode(key, n, seed=i) for i, (key, n) in enumerate([("a", 9), ("b", 3), ("c", 20)])}
    for key, episode in episodes.items():
        put(table, key, episode.num_frames, seed=list(episodes).index(key))
    batch = table.sample(200, 1)
    assert batch.state.shape == (200, 4) and batch.actions.shape == (200, H, 4) and batch.images == {}
    assert batch.state.dtype == batch.actions.dtype == np.float32 and batch.action_mask.dtype == np.bool_
    for row, (key, start) in enumerate(batch.keys):
        source = episodes[key]
        chunk = source.action[start : start + H]
        np.testing.assert_array_equal(batch.state[row], source.state[start])
        np.testing.assert_array_equal(batch.objects[row], source.objects[start])
        np.testing.assert_array_equal(batch.actions[row][: len(chunk)], chunk)
        np.testing.assert_array_equal(batch.actions[row][len(chunk) :], np.repeat(chunk[-1:], H - len(chunk), axis=0))
        np.testing.assert_array_equal(batch.action_mask[row], np.arange(H) < len(chunk))
    assert {key for key, _ in batch.keys} == set(episodes)
    table.close()


def check_images_are_the_recorded_bytes(make: MakeTable) -> None:
    table = make(H)
    episodes = {f"e{i}": make_episode(f"e{i}", 13, images=True, seed=i) for i in range(2)}
    for i, key in enumerate(episodes):
        put(table, key, 13, images=True, seed=i)
    assert table.keys() == [(key, start) for key in episodes for start in (0, 3, 6, 9, 12)]
    batch = table.sample(60, 3)
    assert batch.objects is None and set(batch.images) == {"head", "wrist"}
    for row, (key, start) in enumerate(batch.keys):
        for camera, jpegs in batch.images.items():
            assert jpegs[row] == episodes[key].images[camera][start // 3]
            assert isinstance(jpegs[row], bytes)
    table.close()


def check_draws_follow_the_weights(make: MakeTable) -> None:
    table, rng = make(H), np.random.default_rng(5)
    for i in range(4):
        put(table, f"e{i}", 10, rng.random(10) ** 2 + 0.05)
    weights = all_weights(table)
    probabilities = weights / weights.sum()
    assert not chi_square_alarm(counts_of(table, 20_000, 11), probabilities)
    batch = table.sample(50, 2)
    expected = dict(zip(table.keys(), probabilities, strict=True))
    np.testing.assert_allclose(batch.probabilities, [expected[key] for key in batch.keys], rtol=1e-12)
    assert batch.probabilities.dtype == np.float64
    table.close()


def check_capacities_1_to_257(make: MakeTable) -> None:
    table, rng = make(H), np.random.default_rng(0)
    for size in range(1, 258):
        key = f"e{size}"
        put(table, key, 1, seed=size)
        table.set_weights([WeightUpdate(key, 0, np.array([rng.choice([0.0, 1e-12, 0.5, 8.0])]))])
        assert (table.chunks, table.frames, len(table.episodes)) == (size, size, size)
        weights = all_weights(table)
        drawn = {key for key, _ in table.sample(32, size).keys}
        if weights.sum() > 0:
            assert drawn <= {k for k, w in zip(table.episodes, weights, strict=True) if w > 0}
    counts = counts_of(table, 20_000, 1)
    assert not counts[all_weights(table) == 0.0].any() and counts[all_weights(table) == 8.0].all()
    table.close()


def check_zero_weight_is_never_drawn(make: MakeTable) -> None:
    """Also after the sums have seen large and small weights come and go."""
    table, rng = make(H), np.random.default_rng(2)
    for i in range(5):
        put(table, f"e{i}", 40, seed=i)
    for round_ in range(60):
        key = f"e{round_ % 5}"
        table.set_weights([WeightUpdate(key, 0, rng.random(40) * 10.0 ** rng.integers(-9, 7))])
        table.set_weights([WeightUpdate(key, 5, np.zeros(30))])
        zero = {k for k, w in zip(table.keys(), all_weights(table), strict=True) if w == 0.0}
        assert not zero & set(table.sample(64, round_).keys)
    table.close()


def check_all_zero_is_uniform(make: MakeTable) -> None:
    table = make(H)
    put(table, "a", 30, 0.0)
    put(table, "b", 10, 0.0)
    assert not chi_square_alarm(counts_of(table, 4000, 4), np.full(40, 1 / 40))
    np.testing.assert_allclose(table.sample(5, 0).probabilities, 1 / 40)
    table.set_weights([WeightUpdate("b", 3, np.array([1e-200]))])
    assert set(table.sample(50, 1).keys) == {("b", 3)}
    table.close()


def check_uniform_share(make: MakeTable) -> None:
    table = make(H, 0.4)
    weights = np.zeros(20)
    weights[[3, 11]] = 1.0, 3.0
    put(table, "a", 20, weights)
    probabilities = 0.6 * weights / 4 + 0.4 / 20
    assert not chi_square_alarm(counts_of(table, 20_000, 7), probabilities)
    batch = table.sample(40, 1)
    np.testing.assert_allclose(batch.probabilities, probabilities[[start for _, start in batch.keys]])
    put(table, "b", 5, 0.0)
    table.remove_episode("a")
    assert {key for key, _ in table.sample(40, 2).keys} == {"b"}
    table.close()


def check_eviction_is_by_whole_oldest_episodes(make: MakeTable) -> None:
    table = make(H)
    for i in range(6):
        put(table, f"e{i}", 10, seed=i)
    assert table.over_window(60) == () and table.evict(60) == ()
    assert table.over_window(35) == ("e0", "e1", "e2")
    assert table.evict(35) == ("e0", "e1", "e2") and table.episodes == ("e3", "e4", "e5") and table.frames == 30
    assert {key for key, _ in table.sample(300, 0).keys} == {"e3", "e4", "e5"}
    assert table.evict(1) == ("e3", "e4") and table.episodes == ("e5",)
    raises(KeyError, "e3", lambda: table.weights("e3"))
    put(table, "e3", 10)
    assert table.episodes == ("e5", "e3")
    table.close()


def check_only_the_policys_successes_enter(make: MakeTable) -> None:
    table, w = make(H), np.full(1, 0.5)
    for outcome in (Outcome.FAILURE, Outcome.DISCARD):
        bad = make_episode("bad", 20, outcome)
        raises(SourceError, "only successes", lambda bad=bad: table.insert_episode(bad, np.array([0], np.int32), w))
    mixed = make_episode("mixed", 30, human=(10, 11))
    for start in (5, 10, 11):
        at = np.array([start], np.int32)
        raises(SourceError, f"from frame {start}", lambda at=at: table.insert_episode(mixed, at, w))
    taken = dataclasses.replace(mixed, source=mixed.source * 0)  # intervened, though marked as the policy's
    raises(SourceError, "from frame 9", lambda: table.insert_episode(taken, np.array([9], np.int32), w))
    assert table.chunks == 0
    put(table, "mixed", 30, human=(10, 11))
    keys = table.keys()
    assert [start for _, start in keys] == [*range(5), *range(12, 30)]
    batch = table.sample(300, 0)
    frames = batch.actions[..., 0][batch.action_mask]
    assert not set(frames.astype(int)) & {10, 11}
    table.close()


def check_misuse_is_named(make: MakeTable) -> None:
    table = make(H)
    raises(TableEmpty, "no chunk", lambda: table.sample(1, 0))
    put(table, "a", 10)
    raises(ValueError, "already", lambda: put(table, "a", 10))
    raises(ValueError, "not negative", lambda: put(table, "b", 10, -1.0))
    raises(ValueError, "finite", lambda: put(table, "b", 10, np.nan))
    raises(IndexError, "10 chunks", lambda: table.set_weights([WeightUpdate("a", 8, np.ones(3))]))
    raises(KeyError, "'b'", lambda: table.set_weights([WeightUpdate("b", 0, np.ones(1))]))
    falling = np.array([3, 1], np.int32)
    raises(ValueError, "rising", lambda: table.insert_episode(make_episode("c"), falling, np.ones(2)))
    assert table.episodes == ("a",)
    table.close()


def check_an_episode_without_chunks(make: MakeTable) -> None:
    table = make(H)
    table.insert_episode(make_episode("none"), np.zeros(0, np.int32), np.zeros(0))
    raises(TableEmpty, "1 episodes", lambda: table.sample(1, 0))
    put(table, "a", 4)
    assert {key for key, _ in table.sample(20, 0).keys} == {"a"}
    table.remove_episode("none")
    assert table.chunks == 4
    table.close()


def check_priorities_reach_the_table(make: MakeTable) -> None:
    """A FERT sequence with arrivals, evictions and rescaling: the table's weights are the books', draws follow them."""
    table, rng, priorities = make(H), np.random.default_rng(8), Priorities(H)
    made = 0
    for number in range(150):
        if number % 12 == 0:
            episode = make_episode(f"e{made}", 15, seed=made)
            starts = chunk_starts(episode, H)
            stored = priorities.add_episode(f"e{made}", starts, 15, 0.5)
            table.insert_episode(episode, starts, stored)
            made += 1
            for gone in table.evict(75):
                priorities.remove_episode(gone)
        left = int(rng.integers(0, 12))
        target = str(rng.choice(priorities.episodes))
        table.set_weights(priorities.apply(number + 1, f"f{number}", 0.8, [Interval(target, left, left + 3)]))
        for key in priorities.episodes:
            np.testing.assert_array_equal(table.weights(key), priorities.stored(key))
    assert priorities.rescales > 0
    true = np.concatenate([priorities.weights(key) for key in priorities.episodes])
    table.set_weights(
        [
            WeightUpdate(key, 0, priorities.stored(key) + 0.02 * true.sum() / priorities.scale)
            for key in priorities.episodes
        ]
    )  # lifts the smallest, so that the chi-square holds
    weights = all_weights(table)
    assert not chi_square_alarm(counts_of(table, 30_000, 3), weights / weights.sum())
    native = getattr(table, "native_weights", None)
    if native is not None:
        books = dict(zip(table.keys(), weights, strict=True))
        assert all(books[key] == weight for key, weight in native(500).items())
    table.close()


def check_threads_insert_update_and_sample_at_once(make: MakeTable) -> None:
    """A writer brings and evicts episodes, another changes weights, two sample: every batch is whole and of positive
    weight, and the books are right at the end."""
    table, failed, done, sampled = make(H), [], threading.Event(), threading.Event()
    rounds = 200 if table.seeded else 30  # Reverb takes its time over each
    episodes = {f"e{i}": make_episode(f"e{i}", 25, seed=i) for i in range(rounds)}

    def insert() -> None:
        for i, episode in enumerate(episodes.values()):
            table.insert_episode(episode, chunk_starts(episode, H), np.full(25, 0.5 + i))
            table.evict(150)
            sampled.clear()
            assert failed or sampled.wait(60), "no batch within a minute"

    def update() -> None:
        rng = np.random.default_rng(0)
        while not done.is_set():
            key = str(rng.choice(table.episodes or ("e0",)))
            try:
                table.set_weights([WeightUpdate(key, 5, rng.random(10)), WeightUpdate(key, 20, np.zeros(5))])
            except KeyError:
                assert key not in table.episodes or not table.chunks, key

    def sample() -> None:
        while not done.is_set():
            try:
                batch = table.sample(40, 1)
            except TableEmpty:
                continue
            for row, (key, start) in enumerate(batch.keys):
                np.testing.assert_array_equal(batch.state[row], episodes[key].state[start])
                chunk = episodes[key].action[start : start + H]
                np.testing.assert_array_equal(batch.actions[row][: len(chunk)], chunk)
            assert (batch.probabilities > 0).all()
            sampled.set()

    def guard(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # reported by the main thread
            failed.append(error)
            sampled.set()

    others = [threading.Thread(target=guard, args=(call,)) for call in (update, sample, sample)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places in the middle of everything
    for thread in others:
        thread.start()
    guard(insert)
    done.set()
    for thread in others:
        thread.join(60)
    sys.setswitchinterval(interval_s)
    assert not failed, failed
    assert table.episodes == tuple(f"e{i}" for i in range(rounds - 6, rounds)) and table.frames == table.chunks == 150
    assert all(np.isfinite(table.weights(key)).all() for key in table.episodes)
    table.close()


def check_a_seed_repeats_where_promised(make: MakeTable) -> None:
    table = make(H)
    put(table, "a", 30)
    put(table, "b", 30)
    first = table.sample(64, 5)
    assert first.priority_version == table.sample(1, 0).priority_version
    if table.seeded:
        assert first.keys == table.sample(64, 5).keys and first.keys != table.sample(64, 6).keys
    put(table, "c", 3)
    assert table.sample(1, 0).priority_version > first.priority_version
    table.close()


def checks() -> Iterator[tuple[str, Callable[[MakeTable], None]]]:
    for name, function in globals().items():
        if name.startswith("check_"):
            yield name, function


def main(kind: str) -> None:
    for name, check in checks():
        check(lambda horizon, share=0.0: make_table(kind, horizon, share))
        print(f"passed {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
