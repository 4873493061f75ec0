"""The training worker: retrieval, prioritised fine-tuning, published policies, checkpoints.

python -m cel_jax.workers.training
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import numpy as np

from cel_jax.bus.blobs import BlobServer
from cel_jax.config import config_hash
from cel_jax.data import normalize
from cel_jax.data.normalize import NormStats
from cel_jax.fert import build
from cel_jax.fert.checkpoints import CheckpointStore, Identity
from cel_jax.fert.embedding import tower_hash
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.ingestion import Event, Ingestion
from cel_jax.fert.learner import Learner, Phase
from cel_jax.fert.manifest import CheckpointMismatch
from cel_jax.fert.sharding import make_mesh
from cel_jax.fert.trainer import TrainState
from cel_jax.models.policy import Policy
from cel_jax.models.presets import Pi0Config
from cel_jax.models.saving import load_policy
from cel_jax.models.weights_wire import to_bytes
from cel_jax.recovery import rundb
from cel_jax.recovery.beat import WorkerContext
from cel_jax.workers.published_version import published_version
from cel_jax.workers.publishing import Publisher, released_network
from cel_jax.workers.store_client import RemoteStore
from cel_jax.workers.store_group import StoreGroup
from cel_jax.workers.wiring import TRAINING, Wiring, store_name

INGEST_ITEMS = 4  # episodes handled between two updates: the learner never stops for a backlog
STARVED_S = 0.5
METRICS_EVERY_STEPS = 10


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    start = load_policy(wiring.start_folder, weights="float32").with_sampling(wiring.config.policy)
    with contextlib.ExitStack() as links:
        clients = [links.enter_context(wiring.client(store_name(i))) for i in range(wiring.config.fleet.stores)]
        store = StoreGroup([RemoteStore(client) for client in clients])
        learner = build_learner(wiring, start, store)
        start, network, blobs = start.without_params(), released_network(wiring), BlobServer()
        publisher = Publisher(wiring, start, network, blobs)
        publisher.prepare(learner.state.params)
        with wiring.server(TRAINING, blobs.handlers()):
            _republish(wiring, learner, network, blobs)
            wiring.context.ready()
            Loop(wiring, start, store, learner, publisher).run()
    wiring.context.close()


def build_learner(wiring: Wiring, start: Policy, store: StoreGroup) -> Learner:
    """A learner at the last checkpoint of this run, or at the start policy; its ring rebuilt from the disk cache."""
    config = wiring.config
    checkpoints = CheckpointStore(
        wiring.run_dir / "checkpoints",
        Identity(config.name, config.policy.preset, config_hash(config)),
        config.train.keep_checkpoints,
    )
    state = build.start_state(start, config.train, make_mesh(config.train.fsdp_devices))
    state, version = _resume(state, checkpoints, store, start.norm_stats)
    cache = _embedding_cache(wiring, start)
    learner, ingestion = build.build_learner(start, config, store, state, threading.Lock(), checkpoints, version, cache)
    _warm_ring(wiring, ingestion, store)
    return learner


def _embedding_cache(wiring: Wiring, start: Policy) -> EmbeddingCache:
    """Embeddings on disk, of the start policy's tower, which is frozen."""
    tower = start.params["PaliGemma"].get("img") if start.config.image_keys else None
    stride = wiring.config.fert.stride_frames
    return EmbeddingCache(
        wiring.run_dir / "embeddings", tower_hash(tower, start.norm_stats, start.config.image_keys, stride)
    )


def _warm_ring(wiring: Wiring, ingestion: Ingestion, store: StoreGroup) -> None:
    window = store.reset_learner(wiring.context.identity.worker)
    missing = set(ingestion.warm(window))
    for episode in window:
        if episode not in missing:
            store.embedded(episode)


def _resume(
    state: TrainState, checkpoints: CheckpointStore, store: StoreGroup, stats: NormStats
) -> tuple[TrainState, int]:
    """State and policy version. The store keeps its own, newer head; it must be the checkpoint's store.

    Raises CheckpointMismatch where the checkpoint was trained with other statistics than the start policy's.
    """
    if checkpoints.latest() is None:
        return state, 0
    restored = checkpoints.restore(state, allow_changed_config=True)
    check_same_stats(restored.extras["norm_stats"], stats, f"checkpoint {restored.step}")
    store.restore(bytes(restored.extras["store"]))
    print(f"resumed at step {restored.step}, policy version {restored.policy_version}", flush=True)
    return restored.state, restored.policy_version


def _republish(wiring: Wiring, learner: Learner, network: Pi0Config, blobs: BlobServer) -> None:
    """A version number is never given out twice: a learner that lost steps goes on above the last published one."""
    db = rundb.open_db(wiring.run_dir)
    try:
        learner.policy_version = max(learner.policy_version, published_version(db))
    finally:
        db.close()
    if learner.policy_version and wiring.policy_folder.exists():
        params = load_policy(wiring.policy_folder, network.dtype).params
        blobs.publish(learner.policy_version, to_bytes(params, network.dtype))


def check_same_stats(stored: dict[str, Any], stats: NormStats, where: str) -> None:
    """Raises CheckpointMismatch naming the statistics that are not bit for bit those of the start policy."""
    ours = normalize.to_dict(stats)
    wrong = [name for name, values in ours.items() if stored.get(name) != values]
    if wrong:
        raise CheckpointMismatch(
            f"{where} was trained with other {', '.join(wrong)} than the start policy has; its weights would mean "
            "other actions. Put back the start policy of this run (init/policy)"
        )


class Loop:
    """Between two updates: new experience, a due publication, a due checkpoint, numbers for the record."""

    def __init__(
        self, wiring: Wiring, start: Policy, store: StoreGroup, learner: Learner, publisher: Publisher
    ) -> None:
        self._wiring, self._start, self._store = wiring, start, store
        self._learner, self._publisher = learner, publisher
        self._db = rundb.open_db(wiring.run_dir)
        self._told = 0

    def run(self) -> None:
        """Until the stop; then publishes and saves what it has."""
        learner, context = self._learner, self._wiring.context
        try:
            while not context.should_stop():
                context.progress(str(learner.status))
                self.turn()
            self._publisher.publish_due(learner, force=True)
            learner.checkpoint(self._extras, force=True)
        finally:
            with contextlib.ExitStack() as ends:
                ends.callback(self._db.close)
                ends.callback(self._publisher.close)
                ends.callback(learner.close)

    def turn(self) -> None:
        """One ingestion and at most one update."""
        learner = self._learner
        taken = learner.ingest(INGEST_ITEMS)
        for event in taken.events:
            self._record(event)
        for one in taken.skipped:
            self._tell("episode skipped", one.reason)
        for mismatch in taken.mismatches:
            self._tell("statistics differ", mismatch)
        report = learner.train_step(STARVED_S)
        self._tell_refused()
        if report is None:
            if learner.status.phase is not Phase.TRAINING:
                self._wiring.context.stop_event.wait(STARVED_S)
            return
        self._publisher.publish_due(learner)
        learner.checkpoint(self._extras)
        if report.step % METRICS_EVERY_STEPS == 0:
            counted = {"refused_steps": learner.refused, "skipped_episodes": learner.skipped}
            rundb.add_metrics(self._db, report.step, report.metrics | counted)

    def _record(self, event: Event) -> None:
        matches = [
            {"episode": one.episode_id, "cost": one.cost, "start": one.start, "stop": one.stop}
            for one in event.retrieved
        ]
        try:
            rundb.add_retrieval(self._db, event.failure_id, event.failure_id, matches)
        except rundb.RunDbError as error:  # a learner that died between the store's answer and this line
            print(f"retrieval of {event.failure_id} is on record already: {error}", flush=True)

    def _tell_refused(self) -> None:
        for problem in self._learner.problems[self._told :]:
            self._tell("batch refused", problem)
            self._told += 1

    def _tell(self, kind: str, text: str) -> None:
        """For the operator's page, and for the worker's log."""
        self._wiring.context.report(kind, text)
        print(f"{kind}: {text}", file=sys.stderr, flush=True)

    def _extras(self) -> dict[str, Any]:
        """What a resume needs beside the training state."""
        snapshot = np.frombuffer(self._store.snapshot(), np.uint8)
        return {"store": snapshot, "norm_stats": normalize.to_dict(self._start.norm_stats)}


if __name__ == "__main__":
    main()
