"""SigLIP laid out for inference: layers apart, q, k and v one product, all cameras in one pass.

Shape letters: B images, N patch tokens, W tower width, F mlp_dim, D width of the language model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from cel_jax.models.attention import attend_grouped
from cel_jax.models.presets import SigLIPConfig
from cel_jax.models.siglip import patchify

Params = dict[str, Any]


class VisionLayer(NamedTuple):
    """qkv {"kernel" [W, 3W], "bias" [3W]}; out [W, W]; up [W, F]; down [F, W], each with its bias."""

    norm_0: Params
    qkv: Params
    out: Params
    norm_1: Params
    up: Params
    down: Params


def pack_vision(tower: Params, config: SigLIPConfig) -> tuple[VisionLayer, ...]:
    """The layers of `PaliGemma/img`."""
    stacked = tower["Transformer"]["encoderblock"]
    return tuple(_pack_layer(jax.tree.map(lambda leaf, i=i: leaf[i], stacked)) for i in range(config.depth))


def _pack_layer(block: Params) -> VisionLayer:
    attention, feed = block["MultiHeadDotProductAttention_0"], block["MlpBlock_0"]
    width = attention["out"]["bias"].shape[-1]
    parts = [attention[name] for name in ("query", "key", "value")]
    qkv = {
        "kernel": jnp.concatenate([part["kernel"].reshape(width, -1) for part in parts], axis=1),
        "bias": jnp.concatenate([part["bias"].reshape(-1) for part in parts]),
    }
    out = {"kernel": attention["out"]["kernel"].reshape(-1, width), "bias": attention["out"]["bias"]}
    return VisionLayer(block["LayerNorm_0"], qkv, out, block["LayerNorm_1"], feed["Dense_0"], feed["Dense_1"])


def see(
    tower: Params, layers: tuple[VisionLayer, ...], config: SigLIPConfig, images: jax.Array, dtype: str, attention: str
) -> jax.Array:
    """images f32 [B, h, w, 3] in -1..1 -> tokens [B, N, D] after the head."""
    kernel, bias = (tower["embedding"][name].astype(jnp.float32) for name in ("kernel", "bias"))
    x = patchify(images.astype(jnp.float32), config.patch) @ kernel.reshape(-1, config.width) + bias
    x = (x + tower["pos_embedding"].astype(jnp.float32)).astype(dtype)
    for layer in layers:
        x = x + _attend(layer, config, _norm(layer.norm_0, x), attention)
        hidden = nn.gelu(_dense(layer.up, _norm(layer.norm_1, x)))
        x = x + _dense(layer.down, hidden)
    return _dense(tower["head"], _norm(tower["Transformer"]["encoder_norm"], x))


def _attend(layer: VisionLayer, config: SigLIPConfig, x: jax.Array, attention: str) -> jax.Array:
    heads, dim = config.num_heads, config.width // config.num_heads
    joined = _dense(layer.qkv, x).reshape(*x.shape[:2], 3, heads, 1, dim)
    q, k, v = joined[:, :, 0] * dim**-0.5, joined[:, :, 1, :, 0], joined[:, :, 2, :, 0]
    return _dense(layer.out, attend_grouped(q, k, v, None, attention).reshape(x.shape))


def _norm(norm: Params, x: jax.Array) -> jax.Array:
    """Layer norm with statistics in float32."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    spread = jnp.mean(jnp.square(wide), axis=-1, keepdims=True) - jnp.square(mean)
    normed = (wide - mean) * jax.lax.rsqrt(jnp.maximum(spread, 0.0) + 1e-6)
    return (normed * norm["scale"] + norm["bias"]).astype(x.dtype)


def _dense(dense: Params, x: jax.Array) -> jax.Array:
    return x @ dense["kernel"].astype(x.dtype) + dense["bias"].astype(x.dtype)
