"""What cannot be embedded, stored or asked is refused by name or skipped in sight; it never changes a priority."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cel_jax.config import FertConfig
from cel_jax.data.episode import Episode, Outcome
from cel_jax.data.episode_check import EpisodeError
from cel_jax.data.episode_codec import encode_episode
from cel_jax.data.normalize import NormStats
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.ingestion import Ingestion
from cel_jax.fert.retrieval import retrieve
from cel_jax.fert.ring import BadEmbeddings, SuccessRing
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.replay.store_files import episode_filename
from tests.replay.episodes import IMAGE_FEATURES, STATE_FEATURES, make_episode

CONFIG = FertConfig(query_frames=30, endpoint_offset_frames=3, h_pre_frames=3, h_post_frames=3)
STATS = NormStats(
    state_mean=np.zeros(4, np.float32),
    state_std=np.ones(4, np.float32),
    action_mean=np.zeros((6, 4), np.float32),
    action_std=np.ones((6, 4), np.float32),
    objects_mean=np.zeros((2, 9), np.float32),
    objects_std=np.full((2, 9), 0.1, np.float32),
)


class Rig:
    """A store and its learner's ingestion, in state mode."""

    def __init__(self, folder):
        self.folder = folder
        self.store = open_store(folder)
        self.ring = SuccessRing(22, 10**6)
        embedder = Embedder(None, STATS)
        self.ingestion = Ingestion(self.store, self.ring, embedder, Decoder(), CONFIG)

    def deliver(self, episode: Episode) -> None:
        deliver(self.store, self.folder, episode)

    def weights(self) -> dict[str, list[float]]:
        return {key: self.store.table.weights(key).tolist() for key in self.store.table.episodes}


def open_store(folder, features=STATE_FEATURES) -> ExperienceStore:
    config = StoreConfig(6, query_frames=30, endpoint_offset_frames=3, shard_episodes=100, task="phone")
    return ExperienceStore(folder, MemoryTable(6), config, features)


def deliver(store: ExperienceStore, folder, episode: Episode) -> None:
    path = folder / "incoming" / episode_filename(episode.header.id)
    path.write_bytes(encode_episode(episode))
    store.accept(path)


@pytest.fixture
def rig(tmp_path) -> Rig:
    made = Rig(tmp_path)
    for i in range(3):
        made.deliver(make_episode(f"s{i}", 60, seed=i))
    made.ingestion.run(10)
    assert made.ring.episode_ids == ["s0", "s1", "s2"]
    return made


@pytest.mark.parametrize("leaf", ["state", "action", "objects"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_stop_at_the_store(rig, leaf, value):
    for outcome in (Outcome.SUCCESS, Outcome.FAILURE):
        before, bad = rig.weights(), make_episode("bad", 60, outcome)
        getattr(bad, leaf)[17] = value
        with pytest.raises(
            EpisodeError, match=f"station 'station-1', episode 'bad', leaf '{leaf}': not finite at frame 17"
        ):
            rig.deliver(bad)
        assert rig.weights() == before and "bad" not in rig.store.window
        assert rig.ingestion.run(10).events == ()
    restarted = open_store(rig.folder)
    assert any("bad" in problem and "rejected" in problem for problem in restarted.problems), "quarantined in sight"
    assert {k: restarted.table.weights(k).tolist() for k in restarted.table.episodes} == before


def test_embeddings_that_are_not_finite_are_named_and_nothing_enters_the_ring(rig):
    rows = np.ones((5, 22), np.float32)
    rows[3, 2] = np.nan
    with pytest.raises(BadEmbeddings, match="episode e9: its embeddings are not finite at coarse frame 3"):
        rig.ring.add("e9", rows, 15)
    with pytest.raises(BadEmbeddings, match="query: its embeddings are not finite at coarse frame 3"):
        retrieve(rig.ring, rows, CONFIG)
    assert rig.ring.episode_ids == ["s0", "s1", "s2"]


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILURE])
def test_an_episode_whose_embedding_is_not_finite_is_quarantined_and_changes_no_priority(rig, outcome):
    """Finite numbers that are none any more once they are normalised."""
    before, scale = rig.weights(), rig.store.snapshot().scale
    odd = make_episode("odd", 60, outcome, seed=7)
    odd.objects[:] = 3e38
    rig.deliver(odd)
    rig.deliver(make_episode("s9", 60, seed=9))
    report = rig.ingestion.run(10)
    (skipped,) = report.skipped
    assert skipped.episode_id == "odd" and "episode odd: its embeddings are not finite" in skipped.reason
    assert report.successes == ("s9",) and report.events == () and rig.ingestion.skipped == 1
    after = rig.weights()
    del after["s9"]
    assert after == before and rig.store.snapshot().scale == scale
    assert rig.store.counters()["quarantined"] == 1 and "odd" in rig.store.problems[-1]
    assert rig.ingestion.run(10) == type(report)(), "asked again"
    assert {key for key, _ in rig.store.sample(64, 0).keys} <= {"s0", "s1", "s2", "s9"}


def test_what_a_cache_holds_of_another_version_is_embedded_anew(rig, tmp_path):
    cache = EmbeddingCache(tmp_path / "cache", "t")
    cache.save("s0", np.ones((20, 22), np.float32), 60)
    cache.save("s1", np.full((20, 22), np.nan, np.float32), 60)
    cache.save("s2", np.ones((20, 9), np.float32), 60)
    again = Ingestion(rig.store, SuccessRing(22, 10**6), Embedder(None, STATS), Decoder(), CONFIG, cache=cache)
    assert again.warm(["s0", "s1", "s2"]) == ["s1", "s2"]


def test_a_notice_without_a_camera_is_set_aside(rig):
    vision = lambda images: images.mean((1, 2))[:, None]  # noqa: E731
    embedder = Embedder(vision, STATS, ("head",))
    other = Ingestion(rig.store, SuccessRing(7, 10**6), embedder, Decoder(), CONFIG)
    before = rig.weights()
    rig.deliver(make_episode("f", 60, Outcome.FAILURE))
    (skipped,) = other.run(10).skipped
    assert "failure f: episode f: no images of ['head']" in skipped.reason
    assert rig.weights() == before and rig.store.snapshot().scale == 1.0


def test_a_success_shorter_than_a_chunk_is_a_target_but_no_candidate(rig):
    rig.deliver(make_episode("short", 4, seed=9))
    assert rig.ingestion.run(10).successes == ("short",)
    np.testing.assert_array_equal(rig.store.table.weights("short"), 0.5)
    rig.deliver(make_episode("f", 60, Outcome.FAILURE, seed=9))
    (event,) = rig.ingestion.run(10).events
    assert event.query_frames == 10 and {one.episode_id for one in event.retrieved} == {"s0", "s1", "s2"}
    np.testing.assert_allclose(
        rig.store.table.weights("short") * rig.store.snapshot().scale, 0.5 * rig.store.config.rho
    )


def test_a_failure_without_a_query_decays_nothing_and_is_counted(rig):
    before = rig.weights()
    rig.deliver(make_episode("f", 3, Outcome.FAILURE))
    assert rig.ingestion.run(10).events == ()
    assert rig.weights() == before and rig.store.snapshot().scale == 1.0
    assert rig.store.counters()["retrievals"] == 1 and rig.store.counters()["failures"] == 1


def test_a_failure_without_an_eligible_success_decays_nothing(tmp_path):
    rig = Rig(tmp_path)
    rig.deliver(make_episode("short", 9))
    rig.deliver(make_episode("f", 60, Outcome.FAILURE))
    (event,) = rig.ingestion.run(10).events
    assert event.retrieved == () and event.query_frames == 10
    assert rig.weights() == {"short": [0.5] * 9} and rig.store.snapshot().scale == 1.0


def test_a_missing_camera_is_named(tmp_path):
    store = open_store(tmp_path, IMAGE_FEATURES)
    whole = make_episode("e", 12, images=True)
    with pytest.raises(EpisodeError, match=r"episode 'e': camera 'wrist' is missing .* check its cable"):
        deliver(store, tmp_path, dataclasses.replace(whole, images={"head": whole.images["head"]}))
    assert store.window == ()


def test_a_duplicate_changes_nothing(rig):
    rig.deliver(make_episode("f", 60, Outcome.FAILURE, seed=4))
    rig.ingestion.run(10)
    after = rig.weights()
    for again in (make_episode("s1", 60, seed=1), make_episode("f", 60, Outcome.FAILURE, seed=4)):
        rig.deliver(again)
    report = rig.ingestion.run(10)
    assert report.successes == report.events == ()
    assert rig.weights() == after and rig.store.counters()["duplicates"] == 2


def test_another_embodiment_is_refused_by_store_and_ring(rig):
    before, other = rig.weights(), make_episode("o", 60, Outcome.FAILURE)
    wide = np.zeros((60, 9), np.float32)
    with pytest.raises(EpisodeError, match=r"episode 'o', leaf 'state': expected \(4,\) numbers a frame, got \(9,\)"):
        rig.deliver(dataclasses.replace(other, state=wide))
    with pytest.raises(BadEmbeddings, match=r"query: embeddings \(5, 27\), expected .* another robot type"):
        retrieve(rig.ring, np.ones((5, 27), np.float32), CONFIG)
    assert rig.weights() == before


def test_an_episode_of_another_task_is_refused_and_quarantined(rig):
    other, before = make_episode("o", 60, Outcome.FAILURE), rig.weights()
    with pytest.raises(EpisodeError, match="episode 'o': of task 'cube', this run's store takes 'phone' alone"):
        rig.deliver(dataclasses.replace(other, header=dataclasses.replace(other.header, task="cube")))
    assert rig.weights() == before and rig.store.counters()["failures"] == 0
    assert any("of task 'cube'" in problem for problem in open_store(rig.folder).problems)
