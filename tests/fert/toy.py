"""A small regression for the trainer's tests: two layers, one of them large enough to be sharded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.config import TrainConfig

CONFIG = TrainConfig(batch_size=32, peak_lr=1e-2, warmup_steps=3, decay_steps=20, ema_decay=0.9, clip_norm=1.0)


def params():
    rng = np.random.default_rng(0)
    return {
        "in": {"kernel": rng.normal(size=(64, 256)).astype(np.float32) / 8, "bias": np.zeros(256, np.float32)},
        "out": {"kernel": rng.normal(size=(256, 3)).astype(np.float32) / 16},
    }


def loss(params, batch, rng):
    """Masked squared error per sample, as the policy's; noise on request."""
    hidden = jnp.tanh(batch["x"] @ params["in"]["kernel"] + params["in"]["bias"])
    noise = jax.random.normal(rng, batch["y"].shape) * batch["noise"][:, None, None]
    error = ((hidden @ params["out"]["kernel"])[:, None] - batch["y"] - noise) ** 2
    mask = batch["action_mask"][..., None]
    per_sample = (error * mask).sum((1, 2)) / jnp.maximum(mask.sum((1, 2)), 1)
    return per_sample.mean(), per_sample


def batch(seed: int, noise: float = 0.0, size: int = 32):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(size, 64)).astype(np.float32),
        "y": rng.normal(size=(size, 5, 3)).astype(np.float32),
        "action_mask": rng.random((size, 5)) < 0.6,
        "noise": np.full(size, noise, np.float32),
    }
