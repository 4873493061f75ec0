"""The training worker: retrieval, prioritised fine-tuning, published policies, checkpoints.

python -m cel_jax.workers.training
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.bus.blobs import BlobServer
from cel_jax.bus.server import Server
from cel_jax.config import config_hash
from cel_jax.data import normalize
from cel_jax.data.images import encode_jpeg
from cel_jax.fert.batches import BatchMaker, policy_loss
from cel_jax.fert.checkpoints import CheckpointStore, Identity
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder, tower_hash
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.ingestion import Event, Ingestion
from cel_jax.fert.learner import Learner, Phase, Published
from cel_jax.fert.ring import SuccessRing
from cel_jax.fert.sharding import make_mesh, put_batch
from cel_jax.fert.trainer import TrainState, create_state, make_optimizer, make_train_step
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.pi0 import flow_loss, vision_tokens
from cel_jax.models.policy import Policy
from cel_jax.models.saving import load_policy
from cel_jax.models.tokenizer import make_tokenizer, tokenize
from cel_jax.recovery import rundb
from cel_jax.recovery.beat import WorkerContext
from cel_jax.replay.chunks import ChunkBatch
from cel_jax.workers.published import keep_published, params_to_bytes
from cel_jax.workers.published_version import published_version
from cel_jax.workers.store_client import RemoteStore
from cel_jax.workers.wiring import TRAINING, Wiring, store_name

INGEST_ITEMS = 4  # episodes handled between two updates: the learner never stops for a backlog
STARVED_S = 0.5
METRICS_EVERY_STEPS = 10


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    start = load_policy(wiring.start_folder, "float32")
    with wiring.client(store_name(0)) as client:
        store = RemoteStore(client)
        learner = build_learner(wiring, start, store)
        blobs = BlobServer()
        with Server(wiring.endpoint(TRAINING), wiring.context.identity, blobs.handlers(), on_failure=wiring.report):
            _republish(wiring, learner, blobs)
            wiring.context.ready()
            Loop(wiring, start, store, learner, blobs).run()
    wiring.context.close()


def build_learner(wiring: Wiring, start: Policy, store: RemoteStore) -> Learner:
    """A learner at the last checkpoint of this run, or at the start policy."""
    config = wiring.config
    mesh = make_mesh(config.train.fsdp_devices)
    optimizer = make_optimizer(config.train)
    rng = jax.random.key_data(jax.random.key(config.train.seed))
    checkpoints = CheckpointStore(
        wiring.run_dir / "checkpoints",
        Identity(config.name, config.policy.preset, config_hash(config)),
        config.train.keep_checkpoints,
    )
    state, version = _resume(create_state(start.params, optimizer, config.train, mesh, rng), checkpoints, store)
    loss = policy_loss(flow_loss, ModelInputs, start.config)
    step, maker = make_train_step(loss, optimizer, mesh, config.train), _batch_maker(wiring, start)
    step(jax.tree.map(jnp.copy, state), put_batch(maker(example_chunks(start, config.train.batch_size)), mesh))
    lock = threading.Lock()
    ring, ingestion = build_ingestion(wiring, start, store, lock)
    return Learner(
        store, ingestion, ring, maker, step, state, mesh, config.train, config.replay.min_frames, lock, checkpoints,
        version,
    )  # fmt: skip


def example_chunks(policy: Policy, size: int) -> ChunkBatch:
    """A batch of the right shapes, to compile the step while the robots collect their first episodes."""
    features, horizon = policy.features, policy.config.action_horizon
    images = {c.name: [encode_jpeg(np.zeros((c.height, c.width, 3), np.uint8))] * size for c in features.cameras}
    objects = None if features.objects_shape is None else np.zeros((size, *features.objects_shape), np.float32)
    return ChunkBatch(
        (("example", 0),) * size, np.zeros((size, features.state_dim), np.float32),
        np.zeros((size, horizon, features.action_dim), np.float32), np.ones((size, horizon), bool), objects, images, 0,
        np.ones(size),
    )  # fmt: skip


def build_ingestion(
    wiring: Wiring, start: Policy, store: RemoteStore, lock: threading.Lock
) -> tuple[SuccessRing, Ingestion]:
    """The success ring, rebuilt from the disk cache, and what fills it. The tower is the start policy's, frozen."""
    config = wiring.config
    embedder = make_embedder(start)
    tower = start.params["PaliGemma"].get("img") if start.config.image_keys else None
    cache = EmbeddingCache(
        wiring.run_dir / "embeddings",
        tower_hash(tower, start.norm_stats, embedder.cameras, config.fert.stride_frames),
    )
    ring = SuccessRing(_embedding_dim(start, embedder), config.replay.window_frames)
    ingestion = Ingestion(store, ring, embedder, Decoder(), config.fert, lock, cache)
    window = store.reset_learner(wiring.context.identity.worker)
    missing = set(ingestion.warm(window))
    for episode in window:
        if episode not in missing:
            store.embedded(episode)
    return ring, ingestion


def make_embedder(policy: Policy) -> Embedder:
    """Retrieval embeddings: the tower's tokens, or object poses in `state` mode (equations 2 and 3)."""
    if not policy.config.image_keys:
        return Embedder(None, policy.norm_stats)
    vision = functools.partial(_vision, policy.config)
    return Embedder(vision, policy.norm_stats, policy.config.image_keys, policy.params)


def _vision(config: Any, params: Any, images: jax.Array) -> jax.Array:
    return vision_tokens(params, config, images)


def _embedding_dim(policy: Policy, embedder: Embedder) -> int:
    features = policy.features
    images = {c.name: np.zeros((1, c.height, c.width, 3), np.uint8) for c in features.cameras}
    objects = None if features.objects_shape is None else np.zeros((1, *features.objects_shape), np.float32)
    return int(embedder(images, np.zeros((1, features.state_dim), np.float32), objects).shape[-1])


def _batch_maker(wiring: Wiring, start: Policy) -> BatchMaker:
    tokenizer = make_tokenizer(start.policy_config.tokenizer)
    tokens, mask = tokenize(tokenizer, start.config, [wiring.config.task.prompt])
    return BatchMaker(start.norm_stats, start.features.delta_mask, tokens[0], mask[0], Decoder())


def _resume(state: TrainState, checkpoints: CheckpointStore, store: RemoteStore) -> tuple[TrainState, int]:
    """State and policy version. The store keeps its own, newer head; it must be the checkpoint's store."""
    if checkpoints.latest() is None:
        return state, 0
    restored = checkpoints.restore(state, allow_changed_config=True)
    store.restore(bytes(restored.extras["store"]))
    print(f"resumed at step {restored.step}, policy version {restored.policy_version}", flush=True)
    return restored.state, restored.policy_version


def _republish(wiring: Wiring, learner: Learner, blobs: BlobServer) -> None:
    """A version number is never given out twice: a learner that lost steps goes on above the last published one."""
    db = rundb.open_db(wiring.run_dir)
    try:
        learner.policy_version = max(learner.policy_version, published_version(db))
    finally:
        db.close()
    if learner.policy_version and wiring.policy_folder.exists():
        blobs.publish(learner.policy_version, params_to_bytes(load_policy(wiring.policy_folder).params))


class Loop:
    """Between two updates: new experience, a due publication, a due checkpoint, numbers for the record."""

    def __init__(self, wiring: Wiring, start: Policy, store: RemoteStore, learner: Learner, blobs: BlobServer) -> None:
        self._wiring, self._start, self._store, self._learner, self._blobs = wiring, start, store, learner, blobs
        self._db = rundb.open_db(wiring.run_dir)
        self._events = 0

    def run(self) -> None:
        """Until the stop; then publishes and saves what it has."""
        learner, context = self._learner, self._wiring.context
        try:
            while not context.should_stop():
                context.progress(str(learner.status))
                self.turn()
            self._publish(learner.publish(force=True))
            learner.checkpoint(self._extras, force=True)
        finally:
            learner.close()
            self._db.close()

    def turn(self) -> None:
        """One ingestion and at most one update."""
        learner = self._learner
        for event in learner.ingest(INGEST_ITEMS).events:
            self._record(event)
        report = learner.train_step(STARVED_S)
        if report is None:
            if learner.status.phase is not Phase.TRAINING:
                self._wiring.context.stop_event.wait(STARVED_S)
            return
        self._publish(learner.publish())
        learner.checkpoint(self._extras)
        if report.step % METRICS_EVERY_STEPS == 0:
            rundb.add_metrics(self._db, report.step, report.metrics)

    def _record(self, event: Event) -> None:
        matches = [
            {"episode": one.episode_id, "cost": one.cost, "start": one.start, "stop": one.stop}
            for one in event.retrieved
        ]
        try:
            rundb.add_retrieval(self._db, event.failure_id, event.failure_id, matches)
        except rundb.RunDbError as error:  # a learner that died between the store's answer and this line
            print(f"retrieval of {event.failure_id} is on record already: {error}", flush=True)

    def _publish(self, published: Published | None) -> None:
        if published is None:
            return
        start_s = time.monotonic()
        params = jax.device_get(published.params)
        self._blobs.publish(published.version, params_to_bytes(params))
        keep_published(self._wiring, self._start, params, published.version)
        seconds = time.monotonic() - start_s
        rundb.add_metrics(self._db, published.step, {"policy_version": published.version, "publish_s": seconds})

    def _extras(self) -> dict[str, Any]:
        """What a resume needs beside the training state."""
        snapshot = np.frombuffer(self._store.snapshot(), np.uint8)
        return {"store": snapshot, "norm_stats": normalize.to_dict(self._start.norm_stats)}


if __name__ == "__main__":
    main()
