"""Batched sampling with a key-value cache; log-probabilities are those of the distribution sampled from.

Shape letters: B requests, P slots of prompt (padded on the left), R most response tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.fert import sharding
from cel_jax.planner.decoder import Decoder, DecoderConfig, Params, output_logits
from cel_jax.planner.records import Sampling

NEVER = -1e30
PROMPT_STEP = 32  # prompts are padded to a multiple of this, so that few shapes are compiled


class ContextOverflow(ValueError):
    """A prompt that the model's context cannot hold."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """One response. ids end with the end token if finish is `stop`; logprobs float32, one an id."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str


def filtered_logprobs(
    logits: jax.Array, used: jax.Array, controls: dict[str, jax.Array], candidates: int | None = None
) -> jax.Array:
    """log of the distribution that is sampled from. logits float32 [B, V], used bool [B, V] -> float32 [B, V].

    In order: presence penalty, temperature, top-k, top-p; tokens cut off get -1e30. controls: float or int [B] each.
    candidates: how many of the best tokens a truncation can keep (see `most_candidates`); None: all.
    """
    logits = logits - controls["presence_penalty"][:, None] * used
    greedy = jnp.where(jnp.arange(logits.shape[-1])[None] == jnp.argmax(logits, -1)[:, None], 0.0, NEVER)
    logprobs = jax.nn.log_softmax(logits / jnp.maximum(controls["temperature"], 1e-6)[:, None])
    truncating = (controls["top_k"] > 0) | (controls["top_p"] < 1)
    cut = lambda x: jnp.where(truncating[:, None], _truncated(x, controls, candidates or x.shape[-1]), x)  # noqa: E731
    logprobs = jax.lax.cond(jnp.any(truncating), cut, lambda x: x, logprobs)
    return jnp.where(controls["temperature"][:, None] > 0, logprobs, greedy)


def _truncated(logprobs: jax.Array, controls: dict[str, jax.Array], candidates: int) -> jax.Array:
    """Top-k, then the smallest set of the rest whose probability reaches top-p; renormalised after each."""
    best, order = jax.lax.top_k(logprobs, candidates)
    rank = jnp.arange(candidates)[None]
    top_k = jnp.where(controls["top_k"] > 0, controls["top_k"], candidates)[:, None]
    probability = jax.nn.softmax(jnp.where(rank < top_k, best, NEVER))
    before = jnp.cumsum(probability, axis=-1) - probability
    # The best token stays even where rounding says that nothing is below top-p.
    inside = (rank < top_k) & ((before < controls["top_p"][:, None]) | (rank == 0))
    rows = jnp.arange(len(logprobs))[:, None]
    kept = jnp.zeros(logprobs.shape, bool).at[rows, order].set(inside)
    return jax.nn.log_softmax(jnp.where(kept, logprobs, NEVER))


def most_candidates(settings: Sequence[Sampling], vocab_size: int) -> int:
    """How many tokens of a row any of these settings can keep: a power of two, so that few shapes are compiled."""
    if any(s.top_p < 1 and s.top_k == 0 for s in settings):
        return vocab_size
    return min(vocab_size, 1 << max(0, max(s.top_k for s in settings) - 1).bit_length())


@functools.partial(jax.jit, static_argnames=("config", "dtype", "steps", "end_id", "candidates"))
def generate(
    params: Params, config: DecoderConfig, dtype: str, tokens: jax.Array, valid: jax.Array, seeds: jax.Array,
    controls: dict[str, jax.Array], steps: int, end_id: int, candidates: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """tokens int, valid bool [B, P]; seeds uint32 [B] -> (ids int [B, R], logprobs float32 [B, R], lengths int [B]).

    Each row draws from its own seed, whatever else is in the batch. A row stops after the end token.
    """
    batch, prompt = tokens.shape
    keys = jax.vmap(jax.random.key)(seeds)
    logits, cache = _prefill(params, config, dtype, tokens, valid, steps)
    length = valid.sum(-1)
    slots = jnp.arange(prompt + steps)[None]
    known = jnp.pad(valid, ((0, 0), (0, steps)))

    def body(carry: Any) -> Any:
        t, logits, cache, used, done, ids, logprobs = carry
        distribution = filtered_logprobs(logits, used, controls, candidates)
        token = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, t), row))(keys, distribution)
        chosen = jnp.take_along_axis(distribution, token[:, None], axis=-1)[:, 0]
        ids = ids.at[:, t].set(jnp.where(done, -1, token))
        logprobs = logprobs.at[:, t].set(jnp.where(done, 0.0, chosen))
        used = used.at[jnp.arange(batch), token].set(True)
        done = done | (token == end_id) | (t + 1 >= controls["max_tokens"])
        mask = known | ((slots >= prompt) & (slots <= prompt + t))
        x, cache = Decoder(config, dtype).apply(
            {"params": params}, token[:, None], (length + t)[:, None], mask[:, None], cache, prompt + t
        )
        return t + 1, output_logits(params, x[:, 0]), cache, used, done, ids, logprobs

    start = (
        jnp.int32(0), logits, cache, jnp.zeros(logits.shape, bool), jnp.zeros(batch, bool),
        jnp.full((batch, steps), -1, jnp.int32), jnp.zeros((batch, steps), jnp.float32),
    )  # fmt: skip
    *_, ids, logprobs = jax.lax.while_loop(lambda c: (c[0] < steps) & ~jnp.all(c[4]), body, start)
    return ids, logprobs, (ids >= 0).sum(-1)


def _prefill(
    params: Params, config: DecoderConfig, dtype: str, tokens: jax.Array, valid: jax.Array, steps: int
) -> tuple[jax.Array, Any]:
    """Logits after the prompt [B, V], and the cache with room for `steps` more."""
    batch, prompt = tokens.shape
    shape = (config.layers, batch, prompt + steps, config.kv_heads, config.head_dim)
    cache = (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
    position = jnp.maximum(jnp.cumsum(valid, axis=-1) - 1, 0)
    causal = jnp.arange(prompt)[None, :] <= jnp.arange(prompt)[:, None]
    mask = jnp.pad(causal[None] & valid[:, None, :], ((0, 0), (0, 0), (0, steps)))
    x, filled = Decoder(config, dtype).apply({"params": params}, tokens, position, mask, cache, jnp.int32(0))
    return output_logits(params, x[:, -1]), filled


class Sampler:
    """Responses of one model at fixed weights.

    Batches are padded to the next of `rows` (beyond, to a power of two) and to prompt steps: every shape compiles once.
    mesh: (data, fsdp) as in training, rows over both axes; None: this process's first device. Raises ValueError where
    prompt and response are longer than the model's context.
    """

    def __init__(
        self, params: Params, config: DecoderConfig, end_id: int, max_prompt_tokens: int, max_response_tokens: int,
        dtype: str = "float32", rows: Sequence[int] = (), mesh: Mesh | None = None,
    ) -> None:  # fmt: skip
        check_context(config, max_prompt_tokens, max_response_tokens)
        self._mesh = mesh or sharding.make_mesh(devices=jax.local_devices()[:1])
        self._rows = sorted(rows)
        self.config, self.dtype, self.end_id = config, dtype, end_id
        self.max_prompt_tokens, self.max_response_tokens = max_prompt_tokens, max_response_tokens
        self.set_params(params)

    def set_params(self, params: Params) -> None:
        """New weights, cast to the rollout's dtype and placed as in training."""
        cast = jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(self.dtype)), params)
        self.params = jax.device_put(cast, sharding.state_sharding(cast, self._mesh))

    def check_length(self, prompt: Sequence[int]) -> None:
        """Raises ContextOverflow naming the lengths."""
        if len(prompt) > self.max_prompt_tokens:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context holds {self.max_prompt_tokens}; prune the history "
                "or raise model.max_prompt_tokens"
            )

    def sample(
        self, prompts: Sequence[Sequence[int]], settings: Sequence[Sampling], seeds: Sequence[int]
    ) -> list[Generation]:
        """One response for each prompt, each with its own settings and seed."""
        for prompt in prompts:
            self.check_length(prompt)
        rows = self._padded(len(prompts))
        tokens, valid = pad_left([*prompts, *[[self.end_id]] * (rows - len(prompts))], self.max_prompt_tokens)
        settings = [*settings, *[Sampling(max_tokens=1)] * (rows - len(prompts))]
        padded = np.array([*seeds, *[0] * (rows - len(prompts))], np.uint32)
        placed = sharding.put_batch((tokens, valid, padded, _controls(settings)), self._mesh)
        found = generate(
            self.params, self.config, self.dtype, *placed, self.max_response_tokens, self.end_id,
            most_candidates(settings, self.config.vocab_size),
        )  # fmt: skip
        ids, logprobs, lengths = map(np.asarray, found)
        return [self._generation(ids[i, :n], logprobs[i, :n]) for i, n in enumerate(lengths[: len(prompts)])]

    def _padded(self, prompts: int) -> int:
        """Rows of the batch, over all devices alike."""
        rows = next((r for r in self._rows if r >= prompts), 1 << (prompts - 1).bit_length())
        return -(-rows // self._mesh.size) * self._mesh.size

    def _generation(self, ids: np.ndarray, logprobs: np.ndarray) -> Generation:
        finish = "stop" if len(ids) and ids[-1] == self.end_id else "length"
        return Generation(tuple(map(int, ids)), tuple(map(float, logprobs)), finish)


def check_context(config: DecoderConfig, prompt_tokens: int, response_tokens: int) -> None:
    """Raises ValueError where a prompt and a response together are longer than the model's context."""
    if config.context_tokens and prompt_tokens + response_tokens > config.context_tokens:
        raise ValueError(
            f"model.max_prompt_tokens {prompt_tokens} and max_response_tokens {response_tokens} together exceed the "
            f"{config.context_tokens} positions that the model was trained on; lower one of them"
        )


def _controls(settings: Sequence[Sampling]) -> dict[str, np.ndarray]:
    column = lambda name, dtype: np.array([getattr(s, name) for s in settings], dtype)  # noqa: E731
    floats = {name: column(name, np.float32) for name in ("temperature", "top_p", "presence_penalty")}
    return floats | {name: column(name, np.int32) for name in ("top_k", "max_tokens")}


def pad_left(prompts: Sequence[Sequence[int]], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int32 [B, P], valid bool [B, P]) with P the longest prompt rounded up, as far as `limit` allows."""
    longest = max(len(prompt) for prompt in prompts)
    slots = max(longest, min(limit, -(-longest // PROMPT_STEP) * PROMPT_STEP))
    tokens, valid = np.zeros((len(prompts), slots), np.int32), np.zeros((len(prompts), slots), bool)
    for row, prompt in enumerate(prompts):
        tokens[row, slots - len(prompt) :] = prompt
        valid[row, slots - len(prompt) :] = True
    return tokens, valid
