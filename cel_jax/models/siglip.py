"""SigLIP image tower with the parameter names of openpi's checkpoints.

Shape letters: B images, N patch tokens, W tower width.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from cel_jax.models.attention import attend_grouped
from cel_jax.models.presets import SigLIPConfig
from cel_jax.models.remat import rematerialised


def patchify(images: jax.Array, patch: int) -> jax.Array:
    """[B, h, w, 3] -> [B, N, patch * patch * 3], patches row-major."""
    b, h, w, c = images.shape
    grid = images.reshape(b, h // patch, patch, w // patch, patch, c).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(b, (h // patch) * (w // patch), patch * patch * c)


class PatchEmbedding(nn.Module):
    """Non-overlapping patches times a kernel, always in float32. Equals a strided convolution."""

    width: int
    patch: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """f32 [B, h, w, 3] -> f32 [B, N, W], row-major."""
        p = self.patch
        kernel = self.param("kernel", nn.initializers.lecun_normal(in_axis=(0, 1, 2)), (p, p, 3, self.width))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.width,))
        flat = patchify(images.astype(jnp.float32), p)
        return flat @ kernel.astype(jnp.float32).reshape(-1, self.width) + bias.astype(jnp.float32)


class MlpBlock(nn.Module):
    mlp_dim: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.Dense(self.mlp_dim, dtype=self.dtype, kernel_init=nn.initializers.xavier_uniform())(x)
        return nn.Dense(x.shape[-1], dtype=self.dtype, kernel_init=nn.initializers.xavier_uniform())(nn.gelu(hidden))


def _flash(query: jax.Array, key: jax.Array, value: jax.Array, **_: object) -> jax.Array:
    """flax's attention function by cuDNN; [B, N, heads, dim]."""
    scaled = (query * query.shape[-1] ** -0.5)[:, :, :, None]
    return attend_grouped(scaled, key, value, None, "cudnn")[:, :, :, 0]


class EncoderBlock(nn.Module):
    """One pre-norm transformer layer; the body of a scan, so it returns (carry, None)."""

    config: SigLIPConfig
    dtype: str
    attention: str = "xla"

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        attention = nn.MultiHeadDotProductAttention(
            num_heads=self.config.num_heads,
            dtype=self.dtype,
            kernel_init=nn.initializers.xavier_uniform(),
            attention_fn=_flash if self.attention == "cudnn" else nn.dot_product_attention,
        )
        y = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + attention(y, y)
        x = x + MlpBlock(self.config.mlp_dim, self.dtype, name="MlpBlock_0")(nn.LayerNorm(dtype=self.dtype)(x))
        return x, None


class Encoder(nn.Module):
    config: SigLIPConfig
    dtype: str
    remat: str
    unroll: int
    attention: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = rematerialised(EncoderBlock, self.remat, tower=True)
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.config.depth,
            unroll=min(self.unroll, self.config.depth),
        )
        x, _ = layers(self.config, self.dtype, self.attention, name="encoderblock")(x, None)
        return nn.LayerNorm(dtype=self.dtype, name="encoder_norm")(x)


class SigLIP(nn.Module):
    """The tower and its head. `out_width` is the language model's width."""

    config: SigLIPConfig
    out_width: int
    dtype: str
    remat: str = "all"
    unroll: int = 1
    attention: str = "xla"

    @nn.compact
    def __call__(self, images: jax.Array, head: bool = True) -> jax.Array:
        """images f32 [B, h, w, 3] in -1..1 -> [B, N, out_width], or [B, N, W] before the head."""
        c = self.config
        x = PatchEmbedding(c.width, c.patch, name="embedding")(images)
        init = nn.initializers.normal(stddev=c.width**-0.5)
        table = self.param("pos_embedding", init, (1, x.shape[1], c.width))
        x = (x + table.astype(jnp.float32)).astype(self.dtype)
        x = Encoder(c, self.dtype, self.remat, self.unroll, self.attention, name="Transformer")(x)
        if not head:
            return x
        return nn.Dense(self.out_width, dtype=self.dtype, kernel_init=nn.initializers.zeros_init(), name="head")(x)
