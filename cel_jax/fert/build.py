"""A learner put together from a policy, a configuration and a store: the same in the fleet and in the study."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled

from cel_jax.config import RunConfig, TrainConfig
from cel_jax.data.images import encode_jpeg
from cel_jax.fert import retrieval
from cel_jax.fert.batches import BatchMaker, policy_loss
from cel_jax.fert.checkpoints import CheckpointStore
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.incoming_stats import IncomingStats
from cel_jax.fert.ingestion import Ingestion, Retriever
from cel_jax.fert.interfaces import Store
from cel_jax.fert.learner import PREFETCH, Learner
from cel_jax.fert.ring_room import make_ring
from cel_jax.fert.sharding import make_mesh, put_batch
from cel_jax.fert.trainer import TrainState, cast_frozen, create_state, make_optimizer, make_train_step
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.params_io import cast
from cel_jax.models.pi0 import flow_loss, vision_tokens
from cel_jax.models.policy import Policy, serving_dtype
from cel_jax.models.presets import Pi0Config, frozen_leaves, trained_as
from cel_jax.models.tokenizer import make_tokenizer, tokenize
from cel_jax.replay.chunks import ChunkBatch


def start_state(start: Policy, config: TrainConfig, mesh: Mesh) -> TrainState:
    """The training state at step 0 with the start policy's weights: float32 masters; what LoRA freezes is bfloat16."""
    rng, frozen = jax.random.key_data(jax.random.key(config.seed)), frozen_leaves(start.config)
    params = start.params if frozen is None else cast_frozen(start.params, frozen)
    return create_state(params, make_optimizer(config, frozen), config, mesh, rng)


def training_network(network: Pi0Config, config: TrainConfig) -> Pi0Config:
    """The network as it is trained: in `compute_dtype`, but on a CPU in float32, where bfloat16 is slower.

    Raises ValueError for an unknown `remat` or `attention`.
    """
    network = serving_dtype(network, None if jax.default_backend() == "cpu" else config.compute_dtype)
    return trained_as(network, config.remat, config.attention)


def build_learner(
    start: Policy,
    config: RunConfig,
    store: Store,
    state: TrainState,
    lock: threading.Lock,
    checkpoints: CheckpointStore | None = None,
    policy_version: int = 0,
    cache: EmbeddingCache | None = None,
    retriever: Retriever = retrieval.retrieve_many,
) -> tuple[Learner, Ingestion]:
    """A learner whose step is compiled, and its ingestion with an empty ring. The retrieval tower is `start`'s.

    lock: held during every call to `store`; whoever else changes the store holds it, too.
    """
    train = config.train
    mesh, maker = make_mesh(train.fsdp_devices), make_batch_maker(start, config.task.prompt)
    batch = put_batch(maker(_example_chunks(start, train.batch_size // jax.process_count())), mesh)
    step = _compiled_step(start, train, state, batch, mesh)
    embedder = make_embedder(start)
    ring = make_ring(_embedding_dim(start, embedder), config, mesh, _step_bytes(step, batch))
    ingestion = Ingestion(
        store, ring, embedder, Decoder(), config.fert, lock, cache, retriever=retriever,
        incoming=IncomingStats(start.norm_stats),
    )  # fmt: skip
    learner = Learner(
        store, ingestion, ring, maker, step, state, mesh, train, config.replay.min_frames, lock, checkpoints,
        policy_version,
    )  # fmt: skip
    return learner, ingestion


def _compiled_step(start: Policy, config: TrainConfig, state: TrainState, batch: Any, mesh: Mesh) -> Compiled:
    """The training step, compiled (and not run: a second state need not fit) while the robots collect."""
    loss = policy_loss(flow_loss, ModelInputs, training_network(start.config, config))
    frozen = frozen_leaves(start.config)
    return make_train_step(loss, make_optimizer(config, frozen), mesh, config, frozen).lower(state, batch).compile()


def _step_bytes(step: Compiled, batch: Any) -> int:
    """What an update needs on a device beside the state: temporaries, and the batches that are made ahead."""
    analysis = step.memory_analysis()
    temporary = 0 if analysis is None else int(analysis.temp_size_in_bytes)
    shards = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(batch)]
    return temporary + (PREFETCH + 1) * sum(shards)


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
    """Retrieval embeddings: the tower's tokens, or object poses in `state` mode (equations 2 and 3).

    The tower is kept in the dtype that it is served in, and nothing else of the policy.
    """
    if not policy.config.image_keys:
        return Embedder(None, policy.norm_stats)
    network = serving_dtype(policy.config, None)
    tower = {"PaliGemma": {"img": cast(policy.params["PaliGemma"]["img"], network.dtype)}}
    return Embedder(functools.partial(_vision, network), policy.norm_stats, network.image_keys, tower)


def _vision(config: Any, params: Any, images: jax.Array) -> jax.Array:
    return vision_tokens(params, config, images)


def _embedding_dim(policy: Policy, embedder: Embedder) -> int:
    features = policy.features
    images = {c.name: np.zeros((1, c.height, c.width, 3), np.uint8) for c in features.cameras}
    objects = None if features.objects_shape is None else np.zeros((1, *features.objects_shape), np.float32)
    return int(embedder(images, np.zeros((1, features.state_dim), np.float32), objects).shape[-1])
