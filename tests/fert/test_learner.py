"""The learner with a literal store: what failures do to training, and what the learner says while it waits."""

from __future__ import annotations

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import FertConfig, TrainConfig
from cel_jax.data import actions as action_space
from cel_jax.fert import retrieval, sharding, trainer
from cel_jax.fert.batches import BatchMaker, policy_loss
from cel_jax.fert.checkpoints import CheckpointStore
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.ingestion import Ingestion
from cel_jax.fert.learner import Learner, Phase, TrainingDiverged
from cel_jax.fert.manifest import Identity
from cel_jax.fert.ring import SuccessRing
from tests.fert import small_store
from tests.fert.small_store import STATS, H, S, SmallStore, notice

FERT = FertConfig(query_frames=15, endpoint_offset_frames=3, top_k=2, h_pre_frames=3, h_post_frames=3)
TRAIN = TrainConfig(batch_size=8, peak_lr=1e-2, warmup_steps=2, decay_steps=50, ema_decay=0.5, max_steps=9,
                    sync_interval_steps=4, checkpoint_interval_steps=4)  # fmt: skip
DELTA = (True, True, True, False)
DIM = small_store.O * small_store.P + S


@dataclasses.dataclass
class Inputs:
    images: dict
    image_masks: dict
    objects: object
    tokens: object
    token_mask: object
    state: object


def flow_loss(params, config, inputs, actions, action_mask, rng):
    """A linear policy in place of the network, called as the network is."""
    assert config == "tiny" and inputs.tokens.shape[1] == 5
    seen = jnp.concatenate([inputs.state, inputs.objects.reshape(len(inputs.state), -1)], -1)
    error = (seen @ params["kernel"])[:, None] - actions + 0.01 * jax.random.normal(rng, actions.shape)
    per_sample = ((error**2).mean(-1) * action_mask).sum(-1) / action_mask.sum(-1)
    return per_sample.mean(), per_sample


def build(store, folder=None, min_frames=100, fert=FERT, train=TRAIN, cache=None, ring=None, **ingestion):
    mesh = sharding.make_mesh(1, jax.devices()[:1])
    optimizer = trainer.make_optimizer(train)
    params = {"kernel": np.zeros((DIM, S), np.float32)}
    state = trainer.create_state(params, optimizer, train, mesh, jax.random.PRNGKey(0))
    step = trainer.make_train_step(policy_loss(flow_loss, Inputs, "tiny"), optimizer, mesh, train)
    saves = None if folder is None else CheckpointStore(folder, Identity("run", "tiny", "c0"))
    version = 0
    if saves and saves.latest() is not None:
        back = saves.restore(state)
        state, version = back.state, back.policy_version
    ring = SuccessRing(DIM, 10**6) if ring is None else ring
    decoder, lock = Decoder(1), threading.Lock()
    embedder = ingestion.pop("embedder", None) or Embedder(None, STATS, batch_sizes=(32,))
    ingest = Ingestion(store, ring, embedder, decoder, fert, lock, cache, **ingestion)
    batches = BatchMaker(STATS, DELTA, np.arange(5), np.ones(5, bool), decoder)
    return Learner(store, ingest, ring, batches, step, state, mesh, train, min_frames, lock, saves, version)


def filled_store(successes=4, failures=0):
    store = SmallStore()
    store.add(*[notice("success", f"s{i}", 60, i) for i in range(successes)])
    store.add(*[notice("failure", f"f{i}", 50, 100 + i) for i in range(failures)])
    return store


def train(learner, steps):
    reports = []
    while len(reports) < steps:
        report = learner.train_step(wait_s=30)
        assert report is not None, learner.status
        reports.append(report)
    return reports


def test_a_failure_raises_the_priority_of_the_matching_moment():
    store = filled_store()
    twin = notice("failure", "f", 53, 2)  # repeats success s2 up to its end: query frames 35..49
    store.add(twin)
    learner = build(store)
    report = learner.ingest(10)
    assert report.successes == ("s0", "s1", "s2", "s3")
    (event,) = report.events
    assert event.query_frames == 5 and event.retrieved[0].episode_id == "s2" and len(event.retrieved) == 2
    first = event.retrieved[0]
    assert (first.start, first.stop) == (3 * first.left - 3, min(60, 3 * first.right + 3))
    assert first.start <= 37 and first.stop >= 50
    assert store.calls[:4] == [("embedded", f"s{i}") for i in range(4)]
    assert store.calls[4] == ("event", "f", [one.interval for one in event.retrieved])
    assert store.weights["s2", 40] == pytest.approx(1.25) and store.weights["s2", 5] == pytest.approx(0.25)
    (step,) = train(learner, 1)
    assert step.priority_version == 1 and len(step.keys) == 8 and step.metrics["grad_norm"] > 0
    learner.close()


def test_failures_without_query_match_or_retrieval_are_handled_as_no_event():
    store = SmallStore()
    store.add(notice("failure", "early", 50, 1), notice("success", "s", 60, 2), notice("failure", "short", 3, 3))
    events = build(store).ingest(10).events
    assert [e.retrieved for e in events] == [(), ()] and [e.query_frames for e in events] == [5, 0]
    assert store.calls == [("event", "early", []), ("embedded", "s"), ("event", "short", [])]
    off = filled_store(failures=1)
    build(off, fert=dataclasses.replace(FERT, failure_retrieval=False)).ingest(10)
    assert off.calls[-1] == ("event", "f0", [])


def test_peers_are_merged_into_one_global_top_k():
    """Two stores that answer each other retrieve what one store with everything would."""
    episodes = [notice("success", f"s{i}", 60, i) for i in range(8)]
    failure = notice("failure", "f", 50, 99)
    whole, left, right = SmallStore(), SmallStore(), SmallStore()
    whole.add(*episodes, failure)
    right.add(*episodes[4:])
    left.add(*episodes[:4], failure)
    other = build(right)
    other.ingest(10)
    asked = []

    def peers(failure_id, query):
        asked.append(failure_id)
        return [other._ingestion.search(query)]

    merged = build(left, peers=peers).ingest(10).events[0].retrieved
    want = build(whole).ingest(10).events[0].retrieved
    assert asked == ["f"] and [m.interval for m in merged] == [w.interval for w in want]
    alone = dataclasses.replace(FERT, scope="worker")
    again = SmallStore()
    again.add(*episodes[:4], failure)
    build(again, fert=alone, peers=peers).ingest(10)
    assert asked == ["f"]


def test_controls_replace_retrieval():
    store = filled_store(failures=1)
    rng = np.random.default_rng(0)
    control = lambda ring, query, config: retrieval.random_intervals(ring, query, config, rng)  # noqa: E731
    (event,) = build(store, retriever=retrieval.each(control)).ingest(10).events
    assert len(event.retrieved) == 2 and all(one.cost == 0 for one in event.retrieved)


def test_waiting_is_a_named_state_with_a_timer():
    store = filled_store(1)
    learner = build(store, min_frames=100)
    assert learner.train_step() is None
    learner.ingest(10)
    before = learner.status
    assert learner.train_step() is None
    status = learner.status
    assert str(status).startswith("waiting for min_frames: have 60 of 100 (for ")
    assert status.since_s == before.since_s and status.seconds > 0
    store.add(notice("success", "s9", 60, 9))
    learner.ingest(10)
    (report,) = train(learner, 1)
    assert report.step == 1 and learner.status.phase is Phase.TRAINING
    learner.close()


def test_an_empty_store_is_waiting_for_a_batch_and_the_end_is_finished():
    store = filled_store()
    learner = build(store)
    learner.ingest(10)
    kept, store.weights = store.weights, {}
    assert learner.train_step(wait_s=0.01) is None and learner.status.phase is Phase.WAITING_FOR_BATCH
    store.weights = kept
    train(learner, TRAIN.max_steps)
    assert learner.train_step() is None and learner.status.phase is Phase.FINISHED
    learner.close()


def test_policies_are_published_every_interval_as_copies_of_the_ema():
    learner = build(filled_store())
    learner.ingest(10)
    published, ema, raw = [], [], []
    for _ in range(9):
        train(learner, 1)
        one = learner.publish()
        if one:
            published.append(one)
            ema.append(np.array(learner.state.ema_params["kernel"]))
            raw.append(np.array(learner.state.params["kernel"]))
        assert learner.publish() is None
    assert [(p.version, p.step) for p in published] == [(1, 4), (2, 8)]
    for one, average, current in zip(published, ema, raw, strict=True):
        np.testing.assert_array_equal(one.params["kernel"], average)
        assert np.abs(average - current).max() > 1e-4
    assert learner.publish(force=True).version == 3
    learner.close()


def test_a_resumed_learner_trains_as_if_it_had_not_stopped(tmp_path):
    straight = build(filled_store())
    straight.ingest(10)
    train(straight, 7)
    first = build(filled_store(), tmp_path)
    first.ingest(10)
    train(first, 4)
    assert first.publish().version == 1
    assert first.checkpoint(lambda: {"priorities": {"weights": np.ones(3)}})
    assert not first.checkpoint(lambda: pytest.fail("asked for extras twice"))
    train(first, 1)
    first.close()
    second = build(filled_store(), tmp_path)
    assert (second.step, second.policy_version) == (4, 1) and second.publish() is None
    second.ingest(10)
    reports = train(second, 3)
    assert [r.step for r in reports] == [5, 6, 7]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(second.state), jax.device_get(straight.state))
    straight.close()
    second.close()


def refused(learner, steps=1):
    """Trains until so many steps were refused."""
    for _ in range(200):
        if learner.refused >= steps:
            return
        learner.train_step(wait_s=30)
    raise AssertionError(learner.status)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_step_with_a_spoiled_episode_is_refused_the_state_kept_and_the_episode_named(value):
    store = filled_store(3)
    learner = build(store, min_frames=1)
    learner.ingest(10)
    train(learner, 2)
    store.episodes["s1"].state[20:] = value
    before = jax.device_get(learner.state)
    while not learner.refused:
        before = jax.device_get(learner.state)
        learner.train_step(wait_s=30)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(learner.state), before)
    assert learner.status.phase is Phase.REFUSED and learner.step == int(before.step)
    assert (
        f"episode s1: step {learner.step + 1} refused" in learner.problems[-1]
        and "of the chunk from frame" in (learner.problems[-1])
    )
    assert store.calls[-1][:2] == ("quarantine", "s1") and not any(name == "s1" for name, _ in store.weights)
    reports = [learner.train_step(wait_s=30) for _ in range(8)]
    done = [report for report in reports if report is not None]
    assert done and all(np.isfinite(report.metrics["loss"]) for report in done), "training goes on without it"
    learner.close()


def test_spoiled_weights_are_named_and_end_training():
    learner = build(filled_store(), min_frames=1)
    learner.ingest(10)
    learner.state = learner.state.replace(params={"kernel": learner.state.params["kernel"].at[3, 1].set(np.nan)})
    with pytest.raises(TrainingDiverged, match=r"step 1 refused, .*: weights kernel are not finite"):
        refused(learner)
    assert learner.step == 0 and int(learner.state.step) == 0
    learner.close()


def test_refusals_without_a_cause_in_the_batch_end_training_after_a_few():
    learner = build(filled_store(), min_frames=1)
    learner.ingest(10)
    learner.state = learner.state.replace(params={"kernel": learner.state.params["kernel"] + 3e38})
    with pytest.raises(TrainingDiverged, match=r"3 in a row. Resume with a lower peak_lr"):
        refused(learner, 9)
    assert len(learner.problems) == 3 and np.isfinite(learner.state.params["kernel"]).all()
    learner.close()


def test_a_damaged_image_in_a_batch_sets_its_episode_aside_and_training_goes_on():
    store = SmallStore()
    store.add(*[notice("success", f"s{i}", 60, i, True) for i in range(3)])
    store.next_experience(9)
    good = set(store.weights) - {("s1", 12)}
    store.weights = {("s1", 12): 1.0}
    store.episodes["s1"].images["wrist"][4] = b"torn"
    learner = build(store, min_frames=0)
    assert learner._prepare(0) is None
    assert "episode s1: episode s1, camera wrist, step 12" in learner.problems[0]
    store.weights = dict.fromkeys(good, 1.0)
    ready = learner._prepare(0)
    assert ready is not None and ready.arrays["images"]["wrist"].shape == (8, 16, 16, 3)
    learner.close()


def test_batches_are_normalised_deltas():
    store = filled_store()
    store.next_experience(9)
    chunks = store.sample(16, 0)
    batch = BatchMaker(STATS, DELTA, np.arange(5), np.ones(5, bool), Decoder(1))(chunks)
    assert {k: v.dtype.name for k, v in batch.items() if k != "images"} == {
        "tokens": "int32", "token_mask": "bool", "state": "float32", "actions": "float32", "action_mask": "bool",
        "objects": "float32",
    }  # fmt: skip
    assert batch["tokens"].shape == (16, 5) and not batch["action_mask"].all()
    back = batch["actions"] * (STATS.action_std + 1e-6) + STATS.action_mean
    back = action_space.to_absolute(back, chunks.state, DELTA)
    mask = chunks.action_mask
    np.testing.assert_allclose(back[mask], chunks.actions[mask], atol=1e-4)
    assert (batch["actions"][~mask] == 0).all() and batch["actions"].shape == (16, H, S)
    np.testing.assert_allclose(batch["state"], (chunks.state - 0.1) / (2 + 1e-6), atol=1e-6)


def image_embedder():
    return Embedder(lambda images: images.mean((1, 2))[:, None], STATS, ("head", "wrist"), batch_sizes=(4,))


def test_images_are_decoded_for_batches_and_retrieval_and_cached(tmp_path):
    store, cache = SmallStore(), EmbeddingCache(tmp_path, "t")
    store.add(*[notice("success", f"s{i}", 60, i, True) for i in range(3)], notice("failure", "f", 53, 1, True))
    learner = build(store, cache=cache, ring=SuccessRing(10, 130), embedder=image_embedder())
    (event,) = learner.ingest(10).events
    assert event.retrieved[0].episode_id == "s1" and event.retrieved[0].stop >= 50
    assert cache.load("s0") is None and cache.load("s2")[1] == 60, "what left the window leaves the cache"
    chunks = store.sample(3, 0)
    batch = BatchMaker(STATS, DELTA, np.arange(5), np.ones(5, bool), Decoder(1))(chunks)
    assert batch["images"]["wrist"].shape == (3, 16, 16, 3) and batch["images"]["wrist"].dtype == np.uint8
    again = build(SmallStore(), cache=cache, ring=SuccessRing(10, 130), embedder=image_embedder())
    assert again._ingestion.warm(["s1", "gone", "s2"]) == ["gone"]
    np.testing.assert_array_equal(again._ring.embeddings("s1"), learner._ring.embeddings("s1"))


def test_a_damaged_image_sets_its_episode_aside_and_names_episode_camera_and_step():
    store = SmallStore()
    bad = notice("success", "s0", 60, 0, True)
    bad.images["wrist"][4] = bad.images["wrist"][4][:30]
    store.add(bad, notice("success", "s1", 60, 1, True))
    report = build(store, ring=SuccessRing(10, 130), embedder=image_embedder()).ingest(10)
    (skipped,) = report.skipped
    assert report.successes == ("s1",) and skipped.episode_id == "s0"
    assert "success s0: episode s0, camera wrist, step 12" in skipped.reason
    assert store.calls == [("quarantine", "s0", skipped.reason), ("embedded", "s1")]


def test_failures_side_by_side_are_one_search_and_the_same_events():
    asked = []

    def counted(ring, queries, config):
        asked.append(len(queries))
        return retrieval.retrieve_many(ring, queries, config)

    together, apart = filled_store(failures=3), filled_store(failures=3)
    events = build(together, retriever=counted).ingest(10).events
    learner = build(apart)
    alone = [event for _ in range(7) for event in learner.ingest(1).events]
    assert asked == [3] and [e.failure_id for e in events] == ["f0", "f1", "f2"]
    assert [[r.interval for r in e.retrieved] for e in events] == [[r.interval for r in e.retrieved] for e in alone]
    assert together.weights == apart.weights
