"""Attention and rotary positions, shared by the modules and by the packed layout.

Shape letters: B batch, T queries, S keys, K key-value heads, G query heads per K, N = K G, H head_dim.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

MASKED_LOGIT = -2.3819763e38  # finite, so that a row without keys gives no NaN
ROPE_BASE = 10_000
IMPLEMENTATIONS = ("xla", "cudnn")

Angles: TypeAlias = tuple[jax.Array, jax.Array]  # sine and cosine, f32 [B, T, 1, H / 2]


def rope_angles(position: jax.Array, head_dim: int) -> Angles:
    """Of int positions [B, T]."""
    exponent = (2.0 / head_dim) * jnp.arange(head_dim // 2, dtype=jnp.float32)
    angle = (position[..., None] / ROPE_BASE**exponent)[:, :, None, :]
    return jnp.sin(angle), jnp.cos(angle)


def rotate_by(x: jax.Array, angles: Angles) -> jax.Array:
    """Rotary embedding, halves split. x [B, T, N, H]; computed in float32."""
    sin, cos = angles
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def rounded_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def attend_grouped(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, implementation: str = "xla"
) -> jax.Array:
    """q [B, T, K, G, H], already scaled, over k and v [B, S, K, H]; mask bool [B, T, S] -> [B, T, K, G, H].

    Logits and softmax in float32. implementation: `xla`, or `cudnn` (flash attention; a GPU and bfloat16 only).
    """
    if implementation == "cudnn" and q.dtype == jnp.bfloat16:
        return _flash(q, k, v, mask)
    # Queries and their heads are neighbours in memory: one product for each key-value head, nothing transposed.
    logits = jnp.einsum("BTKGH,BSKH->BKTGS", q, k, preferred_element_type=jnp.float32)
    if mask is not None:
        logits = jnp.where(mask[:, None, :, None], logits, MASKED_LOGIT)
    return jnp.einsum("BKTGS,BSKH->BTKGH", jax.nn.softmax(logits, axis=-1).astype(q.dtype), v)


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None) -> jax.Array:
    """cuDNN's, with lengths padded to multiples of eight (its backward pass with a mask wants even ones)."""
    length, keys = q.shape[1], k.shape[1]
    padded = [rounded_up(length, 8) - length, rounded_up(keys, 8) - keys]
    if mask is None and any(padded):
        mask = jnp.ones((q.shape[0], length, keys), bool)
    if mask is not None:
        mask = jnp.pad(mask, [(0, 0), (0, padded[0]), (0, padded[1])])[:, None]
    joined = _pad_tokens(q.reshape(*q.shape[:2], -1, q.shape[-1]), padded[0])
    out = jax.nn.dot_product_attention(
        joined, _pad_tokens(k, padded[1]), _pad_tokens(v, padded[1]), mask=mask, scale=1.0, implementation="cudnn"
    )
    return out[:, :length].reshape(q.shape)


def _pad_tokens(x: jax.Array, missing: int) -> jax.Array:
    return jnp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)]) if missing else x
