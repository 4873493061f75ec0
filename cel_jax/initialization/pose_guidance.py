"""Supervision that only a simulator can give: a throw-away head reads object poses from the image tower's tokens.

A released checkpoint's tower has seen millions of images. A small one begins at random and learns where things are much
sooner from poses than from actions alone. The head is dropped after training; the policy never sees a pose.
Shape letters: B batch, C cameras, n tokens of an image, W tower width, O objects, P pose numbers.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from cel_jax.initialization.dataset import ChunkSource
from cel_jax.models import pi0
from cel_jax.models.inputs import ModelInputs, stack_images
from cel_jax.models.pi0 import Params
from cel_jax.models.presets import Pi0Config

Head = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class PoseGuidance:
    """A linear map from all tokens of all cameras to normalised poses. weight: of its loss beside the flow loss."""

    config: Pi0Config
    objects_shape: tuple[int, int]
    weight: float

    def init(self, rng: jax.Array) -> Head:
        """A fresh head: kernel [C * n * W, O * P] and bias [O * P], float32."""
        tower = self.config.siglip
        if tower is None:
            raise ValueError("pose guidance needs a policy with cameras; set init.pose_loss_weight to 0")
        size = len(self.config.image_keys) * self.config.tokens_per_image * tower.width
        count = self.objects_shape[0] * self.objects_shape[1]
        return {"kernel": jax.random.normal(rng, (size, count)) * size**-0.5, "bias": jnp.zeros((count,))}

    def loss(self, head: Head, params: Params, inputs: ModelInputs, poses: jax.Array) -> jax.Array:
        """Weighted mean squared error of poses [B, O, P], which are normalised."""
        images, _ = stack_images(self.config, inputs)
        cameras, batch = images.shape[:2]
        tokens = pi0.vision_tokens(params, self.config, images.reshape(cameras * batch, *images.shape[2:]))
        seen = tokens.reshape(cameras, batch, -1).swapaxes(0, 1).reshape(batch, -1).astype(jnp.float32)
        predicted = seen @ head["kernel"] + head["bias"]
        return self.weight * jnp.mean((predicted - poses.reshape(batch, -1)) ** 2)


def find_guidance(config: Pi0Config, source: ChunkSource, weight: float) -> PoseGuidance | None:
    """For a policy with cameras whose demonstrations also carry poses; None otherwise, or where the weight is 0."""
    if source.objects is None or not config.image_keys or config.objects_shape is not None or weight <= 0:
        return None
    objects, numbers = source.objects.shape[1:]
    return PoseGuidance(config, (objects, numbers), weight)
