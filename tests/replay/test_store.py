"""The experience store: at-least-once in, exactly once kept; the same weights after a restart at any point."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from cel_jax.config import RunConfig
from cel_jax.data.episode import Outcome
from cel_jax.data.episode_codec import EpisodeError, encode_episode
from cel_jax.replay import store as store_module
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.priorities import Interval, Priorities
from cel_jax.replay.snapshot import SnapshotMismatch, StoreSnapshot
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.replay.store_files import episode_filename
from tests.replay.episodes import IMAGE_FEATURES, STATE_FEATURES, assert_same, make_episode

CONFIG = StoreConfig(horizon=6, window_frames=200, shard_episodes=4, query_frames=12, endpoint_offset_frames=3, rho=0.7)


def open_store(folder: Path, config: StoreConfig = CONFIG, features=STATE_FEATURES) -> ExperienceStore:
    return ExperienceStore(folder, MemoryTable(config.horizon), config, features)


def deliver(store: ExperienceStore, folder: Path, episode):
    path = folder / "incoming" / episode_filename(episode.header.id)
    path.write_bytes(encode_episode(episode))
    return store.accept(path)


def weights_of(store: ExperienceStore) -> dict[str, np.ndarray]:
    return {key: store.table.weights(key) for key in store.table.episodes}


def assert_same_store(a: ExperienceStore, b: ExperienceStore) -> None:
    assert a.window == b.window == a.table.episodes == b.table.episodes
    for (key, x), y in zip(weights_of(a).items(), weights_of(b).values(), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=key)
    first, second = a.sample(50, 3), b.sample(50, 3)
    assert first.keys == second.keys and first.priority_version == second.priority_version
    np.testing.assert_array_equal(first.actions, second.actions)
    assert {**a.counters(), "duplicates": 0} == {**b.counters(), "duplicates": 0}


def test_the_three_outcomes_go_their_ways(tmp_path) -> None:
    store = open_store(tmp_path)
    for key, outcome in (("s", Outcome.SUCCESS), ("f", Outcome.FAILURE), ("d", Outcome.DISCARD)):
        answer = deliver(store, tmp_path, make_episode(key, 30, outcome))
        assert (answer.episode, answer.kind, answer.duplicate) == (key, outcome.value, False)
    assert store.window == ("s",) and store.table.chunks == 30
    np.testing.assert_array_equal(store.table.weights("s"), 0.5)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.cel")} == {
        "successes/s.cel",
        "failures/f.cel",
        "discards/d.cel",
    }
    assert [notice.kind for notice in store.next_experience(9)] == ["success", "failure"]


def test_a_repeated_delivery_is_dropped(tmp_path) -> None:
    store = open_store(tmp_path)
    first = deliver(store, tmp_path, make_episode("s/1", 30))
    again = deliver(store, tmp_path, make_episode("s/1", 30))
    assert again == dataclasses.replace(first, duplicate=True)
    assert store.table.chunks == 30 and store.counters()["duplicates"] == 1 and not store.problems
    other = deliver(store, tmp_path, make_episode("s/1", 30, seed=5))
    assert other.duplicate and "other content" in store.problems[0]
    assert not list((tmp_path / "incoming").iterdir()) and len(list((tmp_path / "rejected").iterdir())) == 1


def test_an_unusable_episode_is_refused_and_stays(tmp_path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(EpisodeError, match="objects"):
        deliver(store, tmp_path, make_episode("e", 9, images=True))
    path = tmp_path / "incoming" / "x.cel"
    path.write_bytes(encode_episode(make_episode("x"))[:-1])
    with pytest.raises(EpisodeError):
        store.accept(path)
    assert path.exists() and store.head == 1
    restarted = open_store(tmp_path)
    assert len(restarted.problems) == 2 and all("rejected" in problem for problem in restarted.problems)
    assert not list((tmp_path / "incoming").iterdir())


def test_human_actions_never_become_targets(tmp_path) -> None:
    store = open_store(tmp_path)
    deliver(store, tmp_path, make_episode("mixed", 30, human=(10, 11)))
    deliver(store, tmp_path, make_episode("human", 12, human=tuple(range(12))))
    assert store.window == ("mixed",) and store.counters()["successes"] == 2
    batch = store.sample(500, 1)
    assert not {10, 11} & set(batch.actions[..., 0][batch.action_mask].astype(int))
    assert [notice.episode for notice in store.next_experience(9)] == ["mixed"]


def test_success_notices_repeat_until_embedded_and_for_a_new_learner(tmp_path) -> None:
    store = open_store(tmp_path)
    episodes = {key: make_episode(key, 20, seed=i) for i, key in enumerate("abc")}
    for episode in episodes.values():
        deliver(store, tmp_path, episode)
    store.reset_learner("one")
    for _ in range(2):
        assert [notice.episode for notice in store.next_experience(2)] == ["a", "b"]
    notice = store.next_experience(1)[0]
    np.testing.assert_array_equal(notice.steps, [0, 3, 6, 9, 12, 15, 18])
    np.testing.assert_array_equal(notice.state, episodes["a"].state[::3])
    np.testing.assert_array_equal(notice.objects, episodes["a"].objects[::3])
    store.embedded("a")
    store.reset_learner("one")
    assert [notice.episode for notice in store.next_experience(9)] == ["b", "c"]
    store.reset_learner("two")
    assert [notice.episode for notice in store.next_experience(9)] == ["a", "b", "c"]


def test_notices_in_image_mode_carry_the_recorded_bytes(tmp_path) -> None:
    store = open_store(tmp_path, features=IMAGE_FEATURES)
    success = make_episode("s", 20, images=True, seed=1)
    failure = make_episode("f", 20, Outcome.FAILURE, images=True, seed=2)
    deliver(store, tmp_path, success)
    deliver(store, tmp_path, failure)
    first, second = store.next_experience(2)
    assert first.images == success.images and first.objects is None
    assert (second.begin, second.end) == (5, 17)
    np.testing.assert_array_equal(second.steps, [6, 9, 12, 15])
    assert second.images["wrist"] == failure.images["wrist"][2:6]


@pytest.mark.parametrize(
    "num_frames, window, steps",
    [(30, (15, 27), [17, 20, 23, 26]), (10, (0, 7), [0, 3, 6]), (4, (0, 1), [0]), (16, (1, 13), [3, 6, 9, 12])],
)
def test_query_windows(tmp_path, num_frames: int, window: tuple[int, int], steps: list[int]) -> None:
    store = open_store(tmp_path)
    deliver(store, tmp_path, make_episode("f", num_frames, Outcome.FAILURE))
    notice = store.next_experience(1)[0]
    assert (notice.begin, notice.end) == window
    np.testing.assert_array_equal(notice.steps, steps)


def test_a_failure_too_short_to_ask_is_settled(tmp_path) -> None:
    store = open_store(tmp_path)
    deliver(store, tmp_path, make_episode("f", 3, Outcome.FAILURE))
    assert store.next_experience(5) == [] and store.counters()["retrievals"] == 1
    assert open_store(tmp_path).next_experience(5) == []


def test_failure_retrieval_can_be_switched_off(tmp_path) -> None:
    store = open_store(tmp_path, dataclasses.replace(CONFIG, failure_retrieval=False))
    deliver(store, tmp_path, make_episode("f", 30, Outcome.FAILURE))
    assert store.next_experience(5) == []


def test_an_event_is_applied_once(tmp_path) -> None:
    store, twin = open_store(tmp_path), Priorities(CONFIG.horizon)
    for key in "ab":
        deliver(store, tmp_path, make_episode(key, 20))
        twin.add_episode(key, np.arange(20, dtype=np.int32), 20, 0.5)
    deliver(store, tmp_path, make_episode("f", 30, Outcome.FAILURE))
    assert store.apply_event("f", [("a", 4, 9), ("gone", 0, 3)]) is True
    assert store.apply_event("f", [("b", 4, 9)]) is False
    assert [notice.kind for notice in store.next_experience(9)] == ["success", "success"]
    twin.apply(1, "f", CONFIG.rho, [Interval("a", 4, 9)])
    for key in "ab":
        np.testing.assert_array_equal(store.table.weights(key), twin.stored(key))
    assert store.sample(1, 0).priority_version == store.head
    assert [event.cause for event in store.explain("a", 5)] == ["a", "f"]
    for bad in ([("a", 15, 21)], [("a", 5, 5)], [("a", 1, 2), ("a", 3, 4)]):
        with pytest.raises(ValueError, match="f"):
            store.apply_event("f", bad)
    with pytest.raises(ValueError, match="no failure of this store"):
        store.apply_event("a", [])


def _walk(folder: Path, moves: int, restart_every: int | None, seed: int = 3) -> ExperienceStore:
    """A random life of a store; with restarts it must end where it ends without."""
    rng, store, made = np.random.default_rng(seed), open_store(folder), 0
    store.reset_learner("one")
    for move in range(moves):
        if rng.random() < 0.7:
            outcome = [Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FAILURE, Outcome.DISCARD][int(rng.integers(0, 4))]
            deliver(store, folder, make_episode(f"e{made}", int(rng.integers(2, 40)), outcome, seed=made))
            made += 1
        notices = [notice for notice in store.next_experience(99) if notice.kind == "failure"]
        for notice in notices[: int(rng.integers(0, 3))]:
            names = rng.permutation(store.window)[:2]
            sizes = {key: int(store.table.weights(key).size) for key in names}
            store.apply_event(notice.episode, [(str(key), 0, int(rng.integers(1, sizes[key] + 1))) for key in names])
        if restart_every and move % restart_every == 0:
            store.close()
            store = open_store(folder)
            store.reset_learner("one")
            assert not store.problems
    return store


@pytest.mark.parametrize("restart_every", [1, 7])
def test_restarts_change_nothing(tmp_path, restart_every: int) -> None:
    straight = _walk(tmp_path / "a", 60, None)
    restarted = _walk(tmp_path / "b", 60, restart_every)
    counters = straight.counters()
    assert counters["evicted"] > 5 and counters["shards"] > 3 and counters["retrievals"] > 8
    assert_same_store(straight, restarted)
    assert straight.snapshot().encode() == restarted.snapshot().encode()


def test_nothing_is_lost_or_doubled_by_a_crash_between_any_two_disk_operations(tmp_path, monkeypatch) -> None:
    """Dies before every single fsync, rename, append and delete of one delivery that also writes a shard and evicts."""

    class Crash(BaseException):
        pass

    def run(folder: Path, die_at: int) -> int:
        store = open_store(folder, dataclasses.replace(CONFIG, window_frames=70))
        for i in range(3):
            deliver(store, folder, make_episode(f"e{i}", 20, seed=i))
        count = 0

        def counted(real):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == die_at:
                    raise Crash
                return real(*args, **kwargs)

            return call

        path = folder / "incoming" / "e3.cel"
        path.write_bytes(encode_episode(make_episode("e3", 20, seed=3)))
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "rename", "unlink"):
                patch.setattr(os, name, counted(getattr(os, name)))
            patch.setattr(store_module.EventLog, "append", counted(store_module.EventLog.append))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            with contextlib.suppress(Crash):
                store.accept(path)
        store.close()
        return count

    total = run(tmp_path / "whole", 0)
    whole = open_store(tmp_path / "whole", dataclasses.replace(CONFIG, window_frames=70))
    assert total > 20 and whole.window == ("e1", "e2", "e3") and whole.counters()["shards"] == 1
    for die_at in range(1, total + 1):
        folder = tmp_path / f"crash{die_at}"
        run(folder, die_at)
        store = open_store(folder, dataclasses.replace(CONFIG, window_frames=70))
        assert_same_store(store, whole)
        assert len(list((folder / "shards").glob("shard-*"))) == 1, "an episode stands in two shards"
        assert not [problem for problem in store.problems if "skipped" not in problem], (die_at, store.problems)
        store.close()
        shutil.rmtree(folder)


def test_the_window_evicts_whole_episodes_and_forgets_their_notices(tmp_path) -> None:
    store = open_store(tmp_path)
    for i in range(9):
        deliver(store, tmp_path, make_episode(f"e{i}", 50))
    assert store.window == ("e5", "e6", "e7", "e8") and store.table.frames == 200
    assert [notice.episode for notice in store.next_experience(99)] == list(store.window)
    assert store.counters()["evicted"] == 5


def test_shards_take_over_and_restore_bit_for_bit(tmp_path) -> None:
    store = open_store(tmp_path)
    episodes = [make_episode(f"e{i}", 15, seed=i) for i in range(6)]
    for episode in episodes:
        deliver(store, tmp_path, episode)
    assert sorted(path.name for path in (tmp_path / "successes").iterdir()) == ["e4.cel", "e5.cel"]
    restarted = open_store(tmp_path)
    assert_same_store(store, restarted)
    for episode in episodes:
        assert_same(restarted._load(episode.header.id), episode)


def test_a_damaged_shard_is_skipped_and_named(tmp_path) -> None:
    store = open_store(tmp_path)
    for i in range(5):
        deliver(store, tmp_path, make_episode(f"e{i}", 15, seed=i))
    store.close()
    data = tmp_path / "shards/shard-000000/data/chunk-000/file-000.parquet"
    data.write_bytes(data.read_bytes()[:-10])
    (tmp_path / "shards/.tmp-shard-000001").mkdir()
    restarted = open_store(tmp_path)
    assert restarted.window == ("e4",) and restarted.table.episodes == ("e4",)
    assert "shard-000000" in " ".join(restarted.problems) and ".tmp-shard-000001" in " ".join(restarted.problems)
    assert sum("left the window" in problem for problem in restarted.problems) == 4
    for i in range(5, 8):
        deliver(restarted, tmp_path, make_episode(f"e{i}", 15, seed=i))
    assert (tmp_path / "shards/shard-000002").is_dir()


def test_a_file_that_goes_bad_does_not_block_the_learner(tmp_path) -> None:
    store = open_store(tmp_path)
    deliver(store, tmp_path, make_episode("f", 30, Outcome.FAILURE))
    deliver(store, tmp_path, make_episode("s", 30))
    store.close()
    (tmp_path / "failures/f.cel").write_bytes(b"rubbish")
    store = open_store(tmp_path)
    assert [notice.episode for notice in store.next_experience(9)] == ["s"]
    assert "failure 'f' cannot be read" in store.problems[0]
    assert not open_store(tmp_path).problems


def test_snapshots_prove_the_store_and_keep_its_head(tmp_path) -> None:
    store = _walk(tmp_path / "a", 30, None)
    snapshot = StoreSnapshot.decode(store.snapshot().encode())
    assert snapshot.event == store.head
    store.restore(snapshot)
    for i in range(5):
        deliver(store, tmp_path / "a", make_episode(f"later{i}", 30))
    restarted = open_store(tmp_path / "a")
    restarted.restore(snapshot)
    assert restarted.head > snapshot.event and "later4" in restarted.window
    with pytest.raises(SnapshotMismatch, match=r"ends at event"):
        open_store(tmp_path / "empty").restore(snapshot)
    with pytest.raises(SnapshotMismatch, match=r"episodes differ"):
        _walk(tmp_path / "other", 60, None, seed=4).restore(snapshot)
    first = next(iter(snapshot.weights))
    snapshot.weights[first][0] = np.nextafter(snapshot.weights[first][0], 9.0)
    with pytest.raises(SnapshotMismatch, match=first):
        restarted.restore(snapshot)


def test_another_horizon_is_an_error(tmp_path) -> None:
    open_store(tmp_path).close()
    with pytest.raises(ValueError, match="action_horizon 6, now 7"):
        open_store(tmp_path, dataclasses.replace(CONFIG, horizon=7))


def test_config_is_read_from_the_run() -> None:
    config = StoreConfig.of(RunConfig())
    assert config == StoreConfig(task="phone_packaging")
    assert (config.window_frames, config.w_init, config.rho, config.query_frames) == (350_000, 0.5, 0.88, 90)


def test_an_episode_in_memory_is_stored_as_its_file_would_be_and_never_decoded(tmp_path, monkeypatch) -> None:
    episode = make_episode("e", 30)
    by_file, in_memory = (open_store(tmp_path / name) for name in ("file", "memory"))
    (tmp_path / "x").write_bytes(encode_episode(episode))
    first = by_file.accept(tmp_path / "x")
    monkeypatch.setattr("cel_jax.replay.store.decode_episode", lambda data: pytest.fail("decoded again"))
    assert in_memory.accept_episode(episode, tmp_path / "y") == first
    files = [(tmp_path / name / "successes" / "e.cel").read_bytes() for name in ("file", "memory")]
    assert files[0] == files[1]
    assert in_memory.accept_episode(episode, tmp_path / "z").duplicate and not (tmp_path / "z").exists()
    for store in (by_file, in_memory):
        store.close()


def test_chunks_may_start_only_where_the_policy_was_asked(tmp_path) -> None:
    store = open_store(tmp_path, dataclasses.replace(CONFIG, chunk_stride_frames=10))
    deliver(store, tmp_path, make_episode("s", 30))
    assert sorted(start for _, start in list(store.table.keys())) == [0, 10, 20]
    for _ in range(2):
        store.close()
        store = open_store(tmp_path, CONFIG)  # what an episode gave stays, whatever the setting is later
        assert store.table.chunks == 3
    run = RunConfig()
    run.replay.chunk_stride_frames = 15
    assert StoreConfig.of(run).chunk_stride_frames == 15
