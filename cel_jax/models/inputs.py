"""What the network takes. Shape letters: B batch, h w pixels, O objects, P pose numbers, L prompt, S state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import flax.struct
import jax
import jax.numpy as jnp

from cel_jax.models.presets import Pi0Config

Array: TypeAlias = Any  # jax or numpy


@flax.struct.dataclass
class ModelInputs:
    """One batch of observations, normalised.

    images: camera -> f32 [B, h, w, 3] in -1..1 (uint8 is converted). image_masks: camera -> bool [B]; a camera
    without an entry is present. objects: f32 [B, O, P] or None. tokens: int32 [B, L]. token_mask: bool [B, L].
    state: f32 [B, S], S at most the network's state width (zeros are added).
    """

    images: Mapping[str, Array]
    image_masks: Mapping[str, Array]
    objects: Array | None
    tokens: Array
    token_mask: Array
    state: Array


def pad_last(x: jax.Array, width: int, name: str) -> jax.Array:
    """[.., n] -> [.., width] with zeros at the end. Raises ValueError if n exceeds width."""
    missing = width - x.shape[-1]
    if missing < 0:
        raise ValueError(f"{name} has {x.shape[-1]} numbers, the network takes at most {width}")
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def to_float(image: jax.Array) -> jax.Array:
    """uint8 0..255 -> f32 -1..1; floats pass through."""
    return image.astype(jnp.float32) / 255.0 * 2.0 - 1.0 if image.dtype == jnp.uint8 else image


def resize_with_pad(image: jax.Array, side: int) -> jax.Array:
    """f32 [B, h, w, 3] in -1..1 -> [B, side, side, 3], aspect kept, centred, black borders."""
    b, h, w, c = image.shape
    if (h, w) == (side, side):
        return image
    ratio = max(h / side, w / side)
    height, width = max(1, int(h / ratio)), max(1, int(w / ratio))
    small = jax.image.resize(image, (b, height, width, c), method="linear")
    top, left = (side - height) // 2, (side - width) // 2
    pads = ((0, 0), (top, side - height - top), (left, side - width - left), (0, 0))
    return jnp.pad(jnp.clip(small, -1.0, 1.0), pads, constant_values=-1.0)


def stack_images(config: Pi0Config, inputs: ModelInputs) -> tuple[jax.Array, jax.Array]:
    """f32 [C, B, px, px, 3] and presence bool [C, B], cameras in the configuration's order."""
    missing = [key for key in config.image_keys if key not in inputs.images]
    if missing:
        raise ValueError(f"cameras {missing} are missing; expected {config.image_keys}, got {sorted(inputs.images)}")
    images = [resize_with_pad(to_float(inputs.images[key]), config.image_px) for key in config.image_keys]
    there = jnp.ones((inputs.tokens.shape[0],), bool)
    masks = [inputs.image_masks.get(key, there) for key in config.image_keys]
    return jnp.stack(images), jnp.stack(masks)


def check_inputs(config: Pi0Config, inputs: ModelInputs) -> None:
    """Raises ValueError naming the array whose shape does not fit the configuration."""
    if inputs.tokens.shape[-1] != config.max_token_len or inputs.token_mask.shape != inputs.tokens.shape:
        got = inputs.tokens.shape, inputs.token_mask.shape
        raise ValueError(f"tokens and token_mask: expected [B, {config.max_token_len}], got {got[0]} and {got[1]}")
    got_objects = None if inputs.objects is None else inputs.objects.shape[1:]
    if config.objects_shape != got_objects:
        raise ValueError(f"objects: expected [B] + {config.objects_shape}, got [B] + {got_objects}")


def example_inputs(config: Pi0Config, batch: int) -> ModelInputs:
    """Zeros of the right shapes: for initialisation, shape evaluation and warming."""
    px = config.image_px
    return ModelInputs(
        images={key: jnp.zeros((batch, px, px, 3), jnp.float32) for key in config.image_keys},
        image_masks={key: jnp.ones((batch,), bool) for key in config.image_keys},
        objects=None if config.objects_shape is None else jnp.zeros((batch, *config.objects_shape), jnp.float32),
        tokens=jnp.zeros((batch, config.max_token_len), jnp.int32),
        token_mask=jnp.ones((batch, config.max_token_len), bool),
        state=jnp.zeros((batch, config.state_width), jnp.float32),
    )
