"""Gemma with two experts that share their attention, with the parameter names of openpi's checkpoints.

Expert 0 (PaliGemma) reads the prefix, expert 1 (actions) the suffix; leaves of expert 1 end in `_1`.
Shape letters: B batch, T tokens, D width, N heads, K key-value heads, G heads per K, H head_dim, L layers,
S keys. An expert's input may be None: it then takes no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from cel_jax.models.presets import GemmaConfig

Streams: TypeAlias = tuple[jax.Array | None, ...]
KeyValue: TypeAlias = tuple[jax.Array, jax.Array]  # each [B, S, K, H], stacked to [L, B, S, K, H] over the layers

MASKED_LOGIT = -2.3819763e38  # finite, so that a row without keys gives no NaN
ROPE_BASE = 10_000


def expert_name(name: str, index: int) -> str:
    """Checkpoint naming: expert 0 has no suffix."""
    return name if index == 0 else f"{name}_{index}"


def rotate(x: jax.Array, position: jax.Array) -> jax.Array:
    """Rotary embedding, halves split. x [B, T, N, H], position int [B, T]."""
    half = x.shape[-1] // 2
    timescale = ROPE_BASE ** ((2.0 / x.shape[-1]) * jnp.arange(half, dtype=jnp.float32))
    angle = (position[..., None] / timescale)[:, :, None, :]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def attend(q: jax.Array, parts: Sequence[KeyValue], mask: jax.Array) -> jax.Array:
    """q [B, T, N, H] over the keys of all parts in order; mask bool [B, T, S] -> [B, T, N, H].

    The parts (cache and new tokens) are joined as logits, not as keys: the cache is never copied.
    """
    b, t, n, h = q.shape
    q = q.reshape(b, t, parts[0][0].shape[2], -1, h)
    logits = [jnp.einsum("BTKGH,BSKH->BKGTS", q, k, preferred_element_type=jnp.float32) for k, _ in parts]
    joined = jnp.where(mask[:, None, None], jnp.concatenate(logits, axis=-1), MASKED_LOGIT)
    probs = jax.nn.softmax(joined, axis=-1).astype(q.dtype)
    ends = [k.shape[1] for k, _ in parts[:-1]]
    pieces = jnp.split(probs, [sum(ends[: i + 1]) for i in range(len(ends))], axis=-1)
    mixed = [jnp.einsum("BKGTS,BSKH->BTKGH", p, v) for p, (_, v) in zip(pieces, parts, strict=True)]
    return sum(mixed[1:], mixed[0]).reshape(b, t, n, h)


class RMSNorm(nn.Module):
    """RMS norm times (1 + scale); with a condition, pi0.5's adaRMS, which also gives a gate."""

    @nn.compact
    def __call__(self, x: jax.Array, cond: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """x [B, T, D], cond [B, C] -> normalised [B, T, D], gate [B, 1, D] or None. Statistics in float32."""
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
        if cond is None:
            scale = self.param("scale", nn.initializers.zeros_init(), (x.shape[-1],))
            return (normed * (1 + scale)).astype(x.dtype), None
        dense = nn.Dense(3 * x.shape[-1], kernel_init=nn.initializers.zeros_init(), dtype=x.dtype, name="Dense_0")
        scale, shift, gate = jnp.split(dense(cond)[:, None, :], 3, axis=-1)
        return (normed * (1 + scale) + shift).astype(x.dtype), gate


class Einsum(nn.Module):
    """A weight `w` that is applied by an einsum, cast to the input's dtype."""

    shape: tuple[int, ...]
    init: Any

    @nn.compact
    def __call__(self, equation: str, x: jax.Array) -> jax.Array:
        return jnp.einsum(equation, x, self.param("w", self.init, self.shape).astype(x.dtype))


class Attention(nn.Module):
    """Joint attention: each expert projects its own tokens, all look at all as the mask allows."""

    experts: tuple[GemmaConfig, ...]

    @nn.compact
    def __call__(
        self, xs: Streams, position: jax.Array, mask: jax.Array, cache: KeyValue | None
    ) -> tuple[Streams, KeyValue]:
        present = [(i, x) for i, x in enumerate(xs) if x is not None]
        parts = [self._project(i, x) for i, x in present]
        q, k, v = (jnp.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        q, k = rotate(q, position) * self.experts[0].head_dim ** -0.5, rotate(k, position)
        mixed = attend(q, [(k, v)] if cache is None else [cache, (k, v)], mask)
        return self._split(xs, mixed), (k, v)

    def _project(self, i: int, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        c = self.experts[i]
        init = nn.initializers.lecun_normal
        if c.num_kv_heads == c.num_heads:
            triple = (3, c.num_heads, c.width, c.head_dim)
            fused = Einsum(triple, init(in_axis=-2, out_axis=-1, batch_axis=(0, 1)), name=expert_name("qkv_einsum", i))
            q, k, v = fused("BTD,CNDH->CBTNH", x)
            return q, k, v
        shape = (c.num_heads, c.width, c.head_dim)
        query = Einsum(shape, init(in_axis=-2, out_axis=-1, batch_axis=(0,)), name=expert_name("q_einsum", i))
        pair = (2, c.num_kv_heads, c.width, c.head_dim)
        both = Einsum(pair, init(in_axis=-2, out_axis=-1, batch_axis=(0, 1)), name=expert_name("kv_einsum", i))
        k, v = both("BTD,CKDH->CBTKH", x)
        return query("BTD,NDH->BTNH", x), k, v

    def _split(self, xs: Streams, mixed: jax.Array) -> Streams:
        out: list[jax.Array | None] = []
        start = 0
        for i, x in enumerate(xs):
            if x is None:
                out.append(None)
                continue
            c = self.experts[i]
            init = nn.initializers.lecun_normal(in_axis=(-3, -2), out_axis=-1)
            shape = (c.num_heads, c.head_dim, c.width)
            project = Einsum(shape, init, name=expert_name("attn_vec_einsum", i))
            out.append(project("BTNH,NHD->BTD", mixed[:, start : start + x.shape[1]]))
            start += x.shape[1]
        return tuple(out)


class FeedForward(nn.Module):
    """Gated by the tanh-approximate gelu; no biases."""

    width: int
    mlp_dim: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gating_init = nn.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=(0,))
        gating = self.param("gating_einsum", gating_init, (2, self.width, self.mlp_dim)).astype(x.dtype)
        linear = self.param("linear", nn.initializers.lecun_normal(), (self.mlp_dim, self.width)).astype(x.dtype)
        return (nn.gelu(x @ gating[0]) * (x @ gating[1])) @ linear


class Block(nn.Module):
    """One layer of all experts; the body of a scan over (carry, cache of this layer)."""

    experts: tuple[GemmaConfig, ...]
    keep_cache: bool

    @nn.compact
    def __call__(
        self, xs: Streams, cache: KeyValue | None, position: jax.Array, mask: jax.Array, conds: Streams
    ) -> tuple[Streams, KeyValue | None]:
        normed, gates = self._norm("pre_attention_norm", xs, conds)
        mixed, new_cache = Attention(self.experts, name="attn")(normed, position, mask, cache)
        xs = _residual(xs, mixed, gates)
        normed, gates = self._norm("pre_ffw_norm", xs, conds)
        fed = tuple(None if x is None else self._feed(i, x) for i, x in enumerate(normed))
        return _residual(xs, fed, gates), new_cache if self.keep_cache else None

    def _feed(self, i: int, x: jax.Array) -> jax.Array:
        return FeedForward(self.experts[i].width, self.experts[i].mlp_dim, name=expert_name("mlp", i))(x)

    def _norm(self, name: str, xs: Streams, conds: Streams) -> tuple[Streams, Streams]:
        return norm_streams([RMSNorm(name=expert_name(name, i)) for i in range(len(xs))], xs, conds)


def norm_streams(norms: Sequence[RMSNorm], xs: Streams, conds: Streams) -> tuple[Streams, Streams]:
    """Each stream through its own norm -> (normalised, gates)."""
    pairs = [(None, None) if x is None else norm(x, c) for norm, x, c in zip(norms, xs, conds, strict=True)]
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _residual(xs: Streams, updates: Streams, gates: Streams) -> Streams:
    def add(x: Any, y: Any, gate: Any) -> Any:
        return None if x is None else x + (y if gate is None else y * gate)

    return tuple(add(x, y, gate) for x, y, gate in zip(xs, updates, gates, strict=True))


class Embedder(nn.Module):
    vocab_size: int
    width: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """int [B, T] -> [B, T, D], times sqrt(width)."""
        init = nn.initializers.normal(stddev=self.width**-0.5)
        table = self.param("input_embedding", init, (self.vocab_size, self.width))
        return table[tokens] * jnp.sqrt(jnp.float32(self.width)).astype(table.dtype)


class Gemma(nn.Module):
    """All layers of all experts."""

    experts: tuple[GemmaConfig, ...]
    vocab_size: int
    dtype: str
    remat: bool = True
    unroll: int = 1

    def setup(self) -> None:
        self.embedder = Embedder(self.vocab_size, self.experts[0].width)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """int [B, T] -> [B, T, D] in the computation's dtype."""
        return self.embedder(tokens).astype(self.dtype)

    @nn.compact
    def __call__(
        self,
        xs: Streams,
        position: jax.Array,
        mask: jax.Array,
        conds: Streams,
        cache: KeyValue | None = None,
        keep_cache: bool = False,
    ) -> tuple[Streams, KeyValue | None]:
        """xs per expert [B, T, D] or None; mask [B, T, S], S counting the cache first -> outputs, keys and values."""
        xs = tuple(None if x is None else x.astype(self.dtype) for x in xs)
        layers = self._stacked()(self.experts, keep_cache, name="layers")
        xs, new_cache = layers(xs, cache, position, mask, conds)
        norms = [RMSNorm(name=expert_name("final_norm", i)) for i in range(len(self.experts))]
        out, _ = norm_streams(norms, xs, conds)
        return out, new_cache

    def _stacked(self) -> Any:
        depth = self.experts[0].depth
        return nn.scan(
            nn.remat(Block, prevent_cse=False) if self.remat else Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=depth,
            unroll=min(self.unroll, depth),
        )
