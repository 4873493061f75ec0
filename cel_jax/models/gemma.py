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
from jax.ad_checkpoint import checkpoint_name

from cel_jax.models.attention import attend_grouped, rope_angles, rotate_by, rounded_up
from cel_jax.models.presets import GemmaConfig
from cel_jax.models.remat import rematerialised

Streams: TypeAlias = tuple[jax.Array | None, ...]
KeyValue: TypeAlias = tuple[jax.Array, jax.Array]  # each [B, S, K, H], stacked to [L, B, S, K, H] over the layers


def expert_name(name: str, index: int) -> str:
    """Checkpoint naming: expert 0 has no suffix."""
    return name if index == 0 else f"{name}_{index}"


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, implementation: str) -> jax.Array:
    """q [B, T, N, H] over k and v [B, S, K, H]; mask bool [B, T, S] -> [B, T, N, H].

    Keys are padded to a multiple of 16: products of odd lengths are slow.
    """
    missing = rounded_up(k.shape[1], 16) - k.shape[1] if k.shape[1] > 16 else 0
    k, v = (jnp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)]) for x in (k, v))
    mask = jnp.pad(mask, [(0, 0), (0, 0), (0, missing)])
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    return attend_grouped(grouped, k, v, mask, implementation).reshape(q.shape)


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


_LORA_INIT = nn.initializers.normal(stddev=0.01)  # both factors, as openpi starts them


class Einsum(nn.Module):
    """A weight `w` that is applied by an einsum, cast to the input's dtype; with a rank, LoRA beside it."""

    shape: tuple[int, ...]
    init: Any
    lora_rank: int = 0
    lora_scale: float = 1.0

    @nn.compact
    def __call__(self, equation: str, x: jax.Array) -> jax.Array:
        base = jnp.einsum(equation, x, self.param("w", self.init, self.shape).astype(x.dtype))
        return base + self._low_rank(equation, x) if self.lora_rank else base

    def _low_rank(self, equation: str, x: jax.Array) -> jax.Array:
        """The last two axes of the weight through `lora_rank` numbers; letters as openpi replaces them."""
        shape_a, shape_b = (*self.shape[:-1], self.lora_rank), (*self.shape[:-2], self.lora_rank, self.shape[-1])
        a = self.param("lora_a", _LORA_INIT, shape_a).astype(x.dtype)
        b = self.param("lora_b", _LORA_INIT, shape_b).astype(x.dtype)
        left, right = equation.split(",")
        weight, out = right.split("->")
        middle = out.replace(weight[-1], "L")
        inner = jnp.einsum(f"{left},{weight[:-1]}L->{middle}", x, a)
        return jnp.einsum(f"{middle},{weight[:-2]}L{weight[-1]}->{out}", inner, b) * self.lora_scale


class Attention(nn.Module):
    """Joint attention: each expert projects its own tokens, all look at all as the mask allows."""

    experts: tuple[GemmaConfig, ...]
    implementation: str = "xla"

    @nn.compact
    def __call__(
        self, xs: Streams, position: jax.Array, mask: jax.Array, cache: KeyValue | None
    ) -> tuple[Streams, KeyValue]:
        present = [(i, x) for i, x in enumerate(xs) if x is not None]
        parts = [self._project(i, x) for i, x in present]
        q, k, v = (jnp.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        head_dim = self.experts[0].head_dim
        angles = rope_angles(position, head_dim)
        q, k = rotate_by(q, angles) * head_dim**-0.5, rotate_by(k, angles)
        q, k, v = (checkpoint_name(part, "qkv") for part in (q, k, v))
        all_k, all_v = (
            (k, v)
            if cache is None
            else (jnp.concatenate([old, new], 1) for old, new in zip(cache, (k, v), strict=True))
        )
        mixed = checkpoint_name(attend(q, all_k, all_v, mask, self.implementation), "mixed")
        return self._split(xs, mixed), (k, v)

    def _project(self, i: int, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        c = self.experts[i]
        init = nn.initializers.lecun_normal
        if c.num_kv_heads == c.num_heads:
            triple = (3, c.num_heads, c.width, c.head_dim)
            fused = self._einsum(triple, init(in_axis=-2, out_axis=-1, batch_axis=(0, 1)), "qkv_einsum", i)
            q, k, v = fused("BTD,CNDH->CBTNH", x)
            return q, k, v
        shape = (c.num_heads, c.width, c.head_dim)
        query = self._einsum(shape, init(in_axis=-2, out_axis=-1, batch_axis=(0,)), "q_einsum", i)
        pair = (2, c.num_kv_heads, c.width, c.head_dim)
        both = self._einsum(pair, init(in_axis=-2, out_axis=-1, batch_axis=(0, 1)), "kv_einsum", i)
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
            project = self._einsum(shape, init, "attn_vec_einsum", i)
            rows = project("BTNH,NHD->BTD", mixed[:, start : start + x.shape[1]])
            out.append(checkpoint_name(rows, "projected"))
            start += x.shape[1]
        return tuple(out)

    def _einsum(self, shape: tuple[int, ...], init: Any, name: str, i: int) -> Einsum:
        c = self.experts[i]
        return Einsum(shape, init, c.lora_rank, c.lora_scale, name=expert_name(name, i))


class FeedForward(nn.Module):
    """Gated by the tanh-approximate gelu; no biases."""

    width: int
    mlp_dim: int
    lora_rank: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gating_init = nn.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=(0,))
        gating = self.param("gating_einsum", gating_init, (2, self.width, self.mlp_dim))
        linear = self.param("linear", nn.initializers.lecun_normal(), (self.mlp_dim, self.width))
        a, b = self._low_rank("gating_einsum", gating.shape)
        gate = checkpoint_name(_dot(x, gating[0], a[0], b[0]), "gate")
        up = checkpoint_name(_dot(x, gating[1], a[1], b[1]), "up")
        return _dot(nn.gelu(gate) * up, linear, *self._low_rank("linear", linear.shape))

    def _low_rank(self, name: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """LoRA's two factors; without a rank, None in their places. openpi leaves out the scale here: so do we."""
        if not self.lora_rank:
            return (None, None), (None, None)
        shapes = (*shape[:-1], self.lora_rank), (*shape[:-2], self.lora_rank, shape[-1])
        a, b = (self.param(f"{name}_lora_{k}", _LORA_INIT, one) for k, one in zip("ab", shapes, strict=True))
        return a, b


def _dot(x: jax.Array, w: jax.Array, a: Any, b: Any) -> jax.Array:
    base = x @ w.astype(x.dtype)
    return base if not isinstance(a, jax.Array) else base + (x @ a.astype(x.dtype)) @ b.astype(x.dtype)


class Block(nn.Module):
    """One layer of all experts; the body of a scan over (carry, cache of this layer)."""

    experts: tuple[GemmaConfig, ...]
    keep_cache: bool
    attention: str = "xla"

    @nn.compact
    def __call__(
        self, xs: Streams, cache: KeyValue | None, position: jax.Array, mask: jax.Array, conds: Streams
    ) -> tuple[Streams, KeyValue | None]:
        normed, gates = self._norm("pre_attention_norm", xs, conds)
        mixed, new_cache = Attention(self.experts, self.attention, name="attn")(normed, position, mask, cache)
        xs = _residual(xs, mixed, gates)
        normed, gates = self._norm("pre_ffw_norm", xs, conds)
        fed = tuple(None if x is None else self._feed(i, x) for i, x in enumerate(normed))
        return _residual(xs, fed, gates), new_cache if self.keep_cache else None

    def _feed(self, i: int, x: jax.Array) -> jax.Array:
        c = self.experts[i]
        return FeedForward(c.width, c.mlp_dim, c.lora_rank, name=expert_name("mlp", i))(x)

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
    remat: str = "all"
    unroll: int = 1
    attention: str = "xla"

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
        layers = self._stacked()(self.experts, keep_cache, self.attention, name="layers")
        xs, new_cache = layers(xs, cache, position, mask, conds)
        norms = [RMSNorm(name=expert_name("final_norm", i)) for i in range(len(self.experts))]
        out, _ = norm_streams(norms, xs, conds)
        return out, new_cache

    def _stacked(self) -> Any:
        depth = self.experts[0].depth
        return nn.scan(
            rematerialised(Block, self.remat),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=depth,
            unroll=min(self.unroll, depth),
        )
