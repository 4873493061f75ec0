"""Decoder-only language models of the Llama and the Qwen3 shape, in Flax.

The two differ by an RMS norm of queries and keys (Qwen3). Shape letters: B batch, T tokens, S slots of the cache or of
the sequence, D width, N heads, K key-value heads, H head_dim, M mlp width, L layers, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

Params: TypeAlias = dict[str, Any]
Cache: TypeAlias = tuple[jax.Array, jax.Array]  # keys and values, each [L, B, S, K, H]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """One model's sizes. qk_norm: Qwen3. tied: the embedding is also the output projection.

    context_tokens: the positions that the model was trained on; 0: any.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    qk_norm: bool = False
    tied: bool = True
    context_tokens: int = 0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(f"{self}: heads must be a multiple of kv_heads, and head_dim even")


def preset(name: str, vocab_size: int) -> DecoderConfig:
    """A named size. Raises ValueError with the known names."""
    sizes = {
        "tiny": DecoderConfig(vocab_size, 96, 3, 4, 2, 24, 256, rope_base=10_000.0, qk_norm=True),
        "debug": DecoderConfig(vocab_size, 16, 2, 2, 1, 8, 32, qk_norm=True),
    }
    if name not in sizes:
        raise ValueError(f"unknown model preset {name!r}; known are {sorted(sizes)}")
    return sizes[name]


class RMSNorm(nn.Module):
    """RMS norm times scale; statistics in float32."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        return (normed * scale).astype(x.dtype)


def rotate(x: jax.Array, position: jax.Array, base: float) -> jax.Array:
    """Rotary embedding, halves split (the layout of published safetensors). x [B, T, N, H], position int [B, T]."""
    half = x.shape[-1] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (position[..., None].astype(jnp.float32) * frequency)[:, :, None, :]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped attention, softmax in float32. q [B, T, N, H], k and v [B, S, K, H], mask bool [B, T, S]."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    logits = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, k, preferred_element_type=jnp.float32)
    # Finite, so that a row of padding, which sees nothing, gives no NaN.
    probs = jax.nn.softmax(jnp.where(mask[:, None, None], logits, -1e30), axis=-1).astype(v.dtype)
    return jnp.einsum("BKGTS,BSKH->BTKGH", probs, v).reshape(q.shape)


class Block(nn.Module):
    """One layer; the body of a scan over (activations, cache of this layer)."""

    config: DecoderConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, cache: Cache | None, position: jax.Array, mask: jax.Array, slot: jax.Array
    ) -> tuple[jax.Array, Cache | None]:
        """x [B, T, D]; cache of this layer, each [B, S, K, H]; mask bool [B, T, S]; slot: where T is written."""
        mixed, cache = self._attention(RMSNorm(self.config.norm_eps, name="attn_norm")(x), cache, position, mask, slot)
        x = x + mixed
        return x + self._mlp(RMSNorm(self.config.norm_eps, name="mlp_norm")(x)), cache

    def _weight(self, name: str, shape: tuple[int, ...], fan_in: int, dtype: Any) -> jax.Array:
        return self.param(name, nn.initializers.normal(fan_in**-0.5), shape).astype(dtype)

    def _attention(
        self, x: jax.Array, cache: Cache | None, position: jax.Array, mask: jax.Array, slot: jax.Array
    ) -> tuple[jax.Array, Cache | None]:
        c = self.config
        project = lambda name, heads: jnp.einsum(  # noqa: E731
            "BTD,DNH->BTNH", x, self._weight(name, (c.width, heads, c.head_dim), c.width, x.dtype)
        )
        q, k, v = project("q", c.heads), project("k", c.kv_heads), project("v", c.kv_heads)
        if c.qk_norm:
            q, k = RMSNorm(c.norm_eps, name="q_norm")(q), RMSNorm(c.norm_eps, name="k_norm")(k)
        q, k = rotate(q, position, c.rope_base) * c.head_dim**-0.5, rotate(k, position, c.rope_base)
        if cache is not None:
            write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=slot, axis=1)
            k, v = write(cache[0], k.astype(cache[0].dtype)), write(cache[1], v.astype(cache[1].dtype))
        out = attend(q, k, v, mask)
        wide = self._weight("o", (c.heads, c.head_dim, c.width), c.heads * c.head_dim, x.dtype)
        return jnp.einsum("BTNH,NHD->BTD", out, wide), None if cache is None else (k, v)

    def _mlp(self, x: jax.Array) -> jax.Array:
        c = self.config
        gate = x @ self._weight("gate", (c.width, c.mlp_width), c.width, x.dtype)
        up = x @ self._weight("up", (c.width, c.mlp_width), c.width, x.dtype)
        return (nn.silu(gate) * up) @ self._weight("down", (c.mlp_width, c.width), c.mlp_width, x.dtype)


class Decoder(nn.Module):
    """The whole model. remat saves memory in training."""

    config: DecoderConfig
    dtype: str = "float32"
    remat: bool = False

    @nn.compact
    def __call__(
        self, tokens: jax.Array, position: jax.Array, mask: jax.Array, cache: Cache | None, slot: jax.Array
    ) -> tuple[jax.Array, Cache | None]:
        """tokens, position int [B, T]; mask bool [B, T, S] -> (activations [B, T, D], cache)."""
        c = self.config
        table = self.param("embedding", nn.initializers.normal(0.02), (c.vocab_size, c.width))
        x = table[tokens].astype(self.dtype)
        stack = nn.scan(
            nn.remat(Block, prevent_cse=False) if self.remat else Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=c.layers,
        )(c, name="layers")
        x, cache = stack(x, cache, position, mask, slot)
        if not c.tied:
            self.param("head", nn.initializers.normal(c.width**-0.5), (c.width, c.vocab_size))
        return RMSNorm(c.norm_eps, name="final_norm")(x), cache


def output_logits(params: Params, x: jax.Array) -> jax.Array:
    """Activations [.., D] -> float32 logits [.., V]."""
    head = params["head"].astype(x.dtype) if "head" in params else params["embedding"].astype(x.dtype).T
    return jnp.matmul(x, head, preferred_element_type=jnp.float32)


def init_params(config: DecoderConfig, key: jax.Array) -> Params:
    """Random float32 parameters."""
    one = jnp.zeros((1, 1), jnp.int32)
    return Decoder(config).init(key, one, one, jnp.ones((1, 1, 1), bool), None, jnp.int32(0))["params"]


def param_shapes(config: DecoderConfig) -> Params:
    """The tree of parameters as shapes."""
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def causal_layout(valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """valid bool [B, T] -> (position int [B, T] counting valid tokens from 0, causal mask bool [B, T, T])."""
    position = jnp.maximum(jnp.cumsum(valid, axis=-1) - 1, 0)
    length = valid.shape[1]
    causal = jnp.arange(length)[None, :] <= jnp.arange(length)[:, None]
    return position, causal[None] & valid[:, None, :]


def response_logits(
    params: Params, config: DecoderConfig, dtype: str, tokens: jax.Array, valid: jax.Array, prompt_slots: int,
    remat: bool = False,
) -> jax.Array:  # fmt: skip
    """Logits of the response tokens: float32 [B, T - P, V].

    tokens int [B, T] = P slots of prompt, padded on the left, then the response, padded on the right.
    """
    position, mask = causal_layout(valid)
    model = Decoder(config, dtype, remat)
    x, _ = model.apply({"params": params}, tokens, position, mask, None, jnp.int32(0))
    return output_logits(params, x[:, prompt_slots - 1 : -1])
