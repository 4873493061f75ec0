"""A learner put together from a policy, a configuration and a store: the same in the fleet and in the study."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.config import RunConfig, TrainConfig
from cel_jax.data.images import encode_jpeg
from cel_jax.fert import retrieval
from cel_jax.fert.batches import BatchMaker, policy_loss
from cel_jax.fert.checkpoints import CheckpointStore
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.ingestion import Ingestion, Retriever
from cel_jax.fert.interfaces import Store
from cel_jax.fert.learner import Learner
from cel_jax.fert.ring import SuccessRing
from cel_jax.fert.sharding import make_mesh, put_batch
from cel_jax.fert.trainer import TrainState, TrainStep, create_state, make_optimizer, make_train_step
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.pi0 import flow_loss, vision_tokens
from cel_jax.models.policy import Policy
from cel_jax.models.tokenizer import make_tokenizer, tokenize
from cel_jax.replay.chunks import ChunkBatch


def start_state(start: Policy, config: TrainConfig, mesh: Mesh) -> TrainState:
    """The training state at step 0 with the start policy's weights (float32)."""
    rng = jax.random.key_data(jax.random.key(config.seed))
    return create_state(start.params, make_optimizer(config), config, mesh, rng)


def build_learner(
    start: Policy,
    config: RunConfig,
    store: Store,
    state: TrainState,
    lock: threading.Lock,
    checkpoints: CheckpointStore | None = None,
    policy_version: int = 0,
    cache: EmbeddingCache | None = None,
    retriever: Retriever = retrieval.retrieve,
) -> tuple[Learner, Ingestion]:
    """A learner whose step is compiled, and its ingestion with an empty ring. The retrieval tower is `start`'s.

    lock: held during every call to `store`; whoever else changes the store holds it, too.
    """
    train = config.train
    mesh, maker = make_mesh(train.fsdp_devices), make_batch_maker(start, config.task.prompt)
    step = _compiled_step(start, train, maker, state, mesh)
    embedder = make_embedder(start)
    ring = SuccessRing(_embedding_dim(start, embedder), config.replay.window_frames)
    ingestion = Ingestion(store, ring, embedder, Decoder(), config.fert, lock, cache, retriever=retriever)
    learner = Learner(
        store, ingestion, ring, maker, step, state, mesh, train, config.replay.min_frames, lock, checkpoints,
        policy_version,
    )  # fmt: skip
    return learner, ingestion


def _compiled_step(start: Policy, config: TrainConfig, maker: BatchMaker, state: TrainState, mesh: Mesh) -> TrainStep:
    """The training step, compiled while the robots collect their first episodes."""
    loss = policy_loss(flow_loss, ModelInputs, start.config)
    step = make_train_step(loss, make_optimizer(config), mesh, config)
    step(jax.tree.map(jnp.copy, state), put_batch(maker(_example_chunks(start, config.batch_size)), mesh))
    return step


def _example_chunks(policy: Policy, size: int) -> ChunkBatch:
    """A batch of the right shapes."""
    features, horizon = policy.features, policy.config.action_horizon
    images = {c.name: [encode_jpeg(np.zeros((c.height, c.width, 3), np.uint8))] * size for c in features.cameras}
    objects = None if features.objects_shape is None else np.zeros((size, *features.objects_shape), np.float32)
    return ChunkBatch(
        (("example", 0),) * size, np.zeros((size, features.state_dim), np.float32),
        np.zeros((size, horizon, features.action_dim), np.float32), np.ones((size, horizon), bool), objects, images, 0,
        np.ones(size),
    )  # fmt: skip


def make_batch_maker(start: Policy, prompt: str) -> BatchMaker:
    """Sampled chunks to normalised arrays, with the run's one prompt."""
    tokenizer = make_tokenizer(start.policy_config.tokenizer)
    tokens, mask = tokenize(tokenizer, start.config, [prompt])
    return BatchMaker(start.norm_stats, start.features.delta_mask, tokens[0], mask[0], Decoder())


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
