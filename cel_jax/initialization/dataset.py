"""Demonstrations as flat arrays that live on the accelerator: batches are gathered there, nothing is copied per step.

Shape letters: N frames of all demonstrations, C chunks, B batch, H horizon, S state, A action, O objects, P pose
numbers, V observed frames, Q prompts, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.data.actions import to_delta
from cel_jax.data.demonstrations import Demonstration
from cel_jax.data.images import decode_jpeg
from cel_jax.data.normalize import NormStats, compute_stats, normalize
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.presets import Pi0Config
from cel_jax.models.tokenizer import Tokenizer, tokenize

STATS_CHUNKS = 20_000


@flax.struct.dataclass
class ChunkSource:
    """state [N, S], action [N, A], taught bool [N], end int32 [N] (one past the frame's episode), objects [N, O, P] or
    None, images camera -> uint8 [V, h, w, 3]. Chunks begin at start int32 [C]; seen int32 [C] is their row in images,
    prompt int32 [C] their place among the Q `texts`.
    """

    state: jax.Array
    action: jax.Array
    taught: jax.Array
    end: jax.Array
    objects: jax.Array | None
    images: dict[str, jax.Array]
    start: jax.Array
    seen: jax.Array
    prompt: jax.Array
    texts: tuple[str, ...] = flax.struct.field(pytree_node=False)

    @property
    def num_chunks(self) -> int:
        return len(self.start)


@flax.struct.dataclass
class TokenTable:
    """tokens int32 [Q, L] and mask bool [Q, L]; row int32 [C] is a chunk's line in them."""

    tokens: jax.Array
    mask: jax.Array
    row: jax.Array


def build(demonstrations: Sequence[Demonstration]) -> ChunkSource:
    """Joins demonstrations of one robot type. Raises ValueError where there are none."""
    if not demonstrations:
        raise ValueError("no demonstrations to train on")
    lengths = [len(d.state) for d in demonstrations]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    observed = [_observed(d) for d in demonstrations]
    taught = np.concatenate([d.taught_steps() for d in demonstrations])
    start = np.concatenate([steps + offset for steps, offset in zip(observed, offsets, strict=False)])
    seen = np.flatnonzero(taught[start])
    texts = tuple(sorted({d.task_prompt for d in demonstrations}))
    prompt = np.repeat([texts.index(d.task_prompt) for d in demonstrations], [len(steps) for steps in observed])
    objects = [d.objects for d in demonstrations if d.objects is not None]
    return ChunkSource(
        state=jnp.asarray(np.concatenate([d.state for d in demonstrations])),
        action=jnp.asarray(np.concatenate([d.action for d in demonstrations])),
        taught=jnp.asarray(taught),
        end=jnp.asarray(np.repeat(offsets[1:], lengths).astype(np.int32)),
        objects=jnp.asarray(np.concatenate(objects)) if objects else None,
        images={camera: jnp.asarray(_decode(demonstrations, camera)) for camera in demonstrations[0].images},
        start=jnp.asarray(start[seen].astype(np.int32)),
        seen=jnp.asarray(seen.astype(np.int32)),
        prompt=jnp.asarray(prompt[seen].astype(np.int32)),
        texts=texts,
    )


def _observed(demonstration: Demonstration) -> np.ndarray:
    if demonstration.images:
        return demonstration.image_steps
    return np.arange(len(demonstration.state), dtype=np.int32)


def _decode(demonstrations: Sequence[Demonstration], camera: str) -> np.ndarray:
    """uint8 [V, h, w, 3], filled in place: a list of images and their stack would need twice the memory."""
    first = next(d for d in demonstrations if len(d.image_steps))
    shape = decode_jpeg(first.images[camera][0], first.id, camera, int(first.image_steps[0])).shape
    ends = np.cumsum([len(d.image_steps) for d in demonstrations])
    pictures = np.empty((int(ends[-1]), *shape), np.uint8)

    def fill(demonstration: Demonstration, end: int) -> None:
        rows = range(end - len(demonstration.image_steps), end)
        for row, step, jpeg in zip(rows, demonstration.image_steps, demonstration.images[camera], strict=True):
            pictures[row] = decode_jpeg(jpeg, demonstration.id, camera, int(step))

    with ThreadPoolExecutor() as threads:  # the codec lets go of the interpreter's lock
        list(threads.map(fill, demonstrations, ends.tolist()))
    return pictures


def tokens_for(source: ChunkSource, config: Pi0Config, tokenizer: Tokenizer, stats: NormStats) -> TokenTable:
    """Prompts as tokens: a line for each text, or for each chunk where the state stands in the prompt (pi0.5)."""
    if not config.discrete_state_input:
        tokens, mask = tokenize(tokenizer, config, source.texts)
        return TokenTable(jnp.asarray(tokens), jnp.asarray(mask), source.prompt)
    states = normalize(np.asarray(source.state)[np.asarray(source.start)], stats.state_mean, stats.state_std)
    texts = [source.texts[index] for index in np.asarray(source.prompt)]
    tokens, mask = tokenize(tokenizer, config, texts, states)
    return TokenTable(jnp.asarray(tokens), jnp.asarray(mask), jnp.arange(len(texts), dtype=jnp.int32))


def chunk_actions(source: ChunkSource, start: jax.Array, horizon: int) -> tuple[jax.Array, jax.Array]:
    """Absolute actions [B, H, A], the last one repeated past the episode's end, and their mask bool [B, H].

    A step is masked out past the end and from the first step on that the expert did wrong on purpose.
    """
    index = start[:, None] + jnp.arange(horizon)
    end = source.end[start][:, None]
    inside = jnp.minimum(index, end - 1)
    taught = jnp.cumprod(source.taught[inside], axis=1).astype(bool)
    return source.action[inside], (index < end) & taught


def statistics(source: ChunkSource, horizon: int, delta_mask: Sequence[bool], seed: int = 0) -> NormStats:
    """Normalisation statistics per time step and dimension, from up to 20,000 chunks."""
    rng = np.random.default_rng(seed)
    count = source.num_chunks
    chosen = rng.choice(count, min(count, STATS_CHUNKS), replace=False)
    start = source.start[chosen]
    actions, mask = chunk_actions(source, start, horizon)
    delta = to_delta(np.asarray(actions), np.asarray(source.state[start]), delta_mask)
    objects = None if source.objects is None else np.asarray(source.objects[start])
    return compute_stats(np.asarray(source.state[start]), delta, np.asarray(mask), objects)


def gather(
    source: ChunkSource,
    chunk: jax.Array,
    stats: NormStats,
    delta_mask: tuple[bool, ...],
    horizon: int,
    tokens: TokenTable,
) -> tuple[ModelInputs, jax.Array, jax.Array]:
    """Model inputs, normalised actions [B, H, A] and mask [B, H] of the chunks int32 [B]. Pure; jit it."""
    start = source.start[chunk]
    state = source.state[start]
    actions, mask = chunk_actions(source, start, horizon)
    delta = to_delta(actions, state, delta_mask)
    objects = None
    if source.objects is not None:
        objects = normalize(source.objects[start], stats.objects_mean, stats.objects_std)
    row = tokens.row[chunk]
    inputs = ModelInputs(
        images={name: image[source.seen[chunk]] for name, image in source.images.items()},
        image_masks={},
        objects=objects,
        tokens=tokens.tokens[row],
        token_mask=tokens.mask[row],
        state=normalize(state, stats.state_mean, stats.state_std),
    )
    return inputs, normalize(delta, stats.action_mean, stats.action_std), mask
