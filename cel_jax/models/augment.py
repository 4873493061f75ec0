"""Random changes of the images in training, as openpi's `preprocess_observation(train=True)` makes them.

Cameras off the wrist: a random crop of 95 %, resized back, then a rotation of up to 5 degrees; the three are one
resampling here. All cameras, in half of the samples: brightness, contrast and hue (openpi also asks for saturation, but
its library drops that result). One sample's cameras share their draws.
Shape letters: B batch, px side of the square images.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from cel_jax.models.inputs import ModelInputs, resize_with_pad, to_float
from cel_jax.models.presets import Pi0Config

CROP, DEGREES = 0.95, 5.0
BRIGHTNESS, CONTRAST, HUE = 0.3, 0.4, 0.1
CHANCE = 0.5  # of a sample to change its colours


class Draw(NamedTuple):
    """One sample's: corner f32 [2] in 0..1 of the free margin, angle in radians, and what the colours do."""

    corner: jax.Array
    angle: jax.Array
    recolour: jax.Array
    brightness: jax.Array
    contrast: jax.Array
    hue: jax.Array


def augment(inputs: ModelInputs, config: Pi0Config, rng: jax.Array) -> ModelInputs:
    """The same inputs with changed images, f32 [B, px, px, 3] in -1..1. Pure; jit it with `config` static."""
    batch = inputs.tokens.shape[0]
    draws = jax.vmap(draw)(jax.random.split(rng, batch))
    images = {}
    for key in config.image_keys:
        square = resize_with_pad(to_float(inputs.images[key]), config.image_px) / 2.0 + 0.5
        moved = square if "wrist" in key else jax.vmap(move)(square, draws)
        images[key] = jax.vmap(recolour)(moved, draws) * 2.0 - 1.0
    return dataclasses.replace(inputs, images={**inputs.images, **images})


def draw(rng: jax.Array) -> Draw:
    """One sample's random numbers."""
    keys = jax.random.split(rng, 6)
    spread = lambda key, width: jax.random.uniform(key, (), minval=-width, maxval=width)  # noqa: E731
    return Draw(
        corner=jax.random.uniform(keys[0], (2,)),
        angle=spread(keys[1], DEGREES * jnp.pi / 180),
        recolour=jax.random.bernoulli(keys[2], CHANCE),
        brightness=spread(keys[3], BRIGHTNESS),
        contrast=spread(keys[4], CONTRAST),
        hue=spread(keys[5], HUE),
    )


def move(image: jax.Array, drawn: Draw) -> jax.Array:
    """Crop, resize and rotation as one resampling of [px, px, 3] in 0..1; bilinear, black outside of the crop."""
    side = image.shape[0]
    middle, inner = (side - 1) / 2, int(side * CROP)
    target = jnp.stack(jnp.meshgrid(jnp.arange(side), jnp.arange(side), indexing="ij")) - middle
    sin, cos = jnp.sin(drawn.angle), jnp.cos(drawn.angle)
    turned = jnp.stack([cos * target[0] + sin * target[1], cos * target[1] - sin * target[0]])
    corner = jnp.floor(drawn.corner * (side - inner + 1))
    place, corner = turned * (inner / side) + (inner - 1) / 2, corner[:, None, None]
    inside = jnp.all((place >= -0.5) & (place <= inner - 0.5), axis=0)
    rows, columns = jnp.clip(place, 0, inner - 1) + corner
    seen = [map_coordinates(image[..., c], [rows, columns], order=1) for c in range(3)]
    return jnp.stack(seen, axis=-1) * inside[..., None]


def recolour(image: jax.Array, drawn: Draw) -> jax.Array:
    """Hue, brightness and contrast of [px, px, 3] in 0..1; unchanged in the other half of the samples.

    Brightness and contrast act on the value of HSV, so that colours keep hue and saturation.
    """
    hue, saturation, value = to_hsv(image)
    value = jnp.clip(contrasted(brightened(value, drawn.brightness), drawn.contrast), 0.0, 1.0)
    return jnp.where(drawn.recolour, from_hsv(hue + drawn.hue, saturation, value), image)


def brightened(value: jax.Array, amount: jax.Array) -> jax.Array:
    """Towards white for a positive amount in -1..1, towards black for a negative one."""
    return jnp.where(amount < 0, value * (1.0 + amount), value * (1.0 - amount) + amount)


def contrasted(value: jax.Array, amount: jax.Array) -> jax.Array:
    """Slope tan((1 + amount) * 45 degrees) about the middle."""
    return (value - 0.5) * jnp.tan((1.0 + amount) * jnp.pi / 4) + 0.5


def to_hsv(image: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[.., 3] in 0..1 -> hue, saturation and value, [..] in 0..1 each; the hue of a grey is 0."""
    red, green, blue = image[..., 0], image[..., 1], image[..., 2]
    value, chroma = image.max(-1), image.max(-1) - image.min(-1)
    safe = jnp.where(chroma > 0, chroma, 1.0)
    sixth = jnp.where(
        value == red,
        (green - blue) / safe,
        jnp.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = jnp.where(chroma > 0, (sixth / 6) % 1.0, 0.0)
    return hue, jnp.where(value > 0, chroma / jnp.where(value > 0, value, 1.0), 0.0), value


def from_hsv(hue: jax.Array, saturation: jax.Array, value: jax.Array) -> jax.Array:
    """The inverse, [.., 3]; the hue counts modulo 1."""
    place = (jnp.array([5.0, 3.0, 1.0]) + 6 * hue[..., None]) % 6
    share = jnp.clip(jnp.minimum(place, 4 - place), 0.0, 1.0)
    return value[..., None] * (1 - saturation[..., None] * share)
