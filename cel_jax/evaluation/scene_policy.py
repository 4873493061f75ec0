"""A policy as the rollout asks it: its noise comes from scene and step, so a trial goes the same in any batch.

Shape letters: B batch, H horizon, A action numbers.
"""

from __future__ import annotations

import functools

import jax
import numpy as np

from cel_jax.data.actions import to_absolute
from cel_jax.data.normalize import unnormalize
from cel_jax.evaluation.trials import ObservationBatch, PolicyInfer
from cel_jax.models.pi0 import sample_actions
from cel_jax.models.policy import Policy

_sample = functools.partial(jax.jit, static_argnums=(1, 4))(sample_actions)


def scene_policy(policy: Policy, prompt: str) -> PolicyInfer:
    """Observations -> absolute actions float32 [B, H, A] under one prompt."""
    config, stats, mask = policy.config, policy.norm_stats, policy.features.delta_mask
    settings = policy.policy_config

    def infer(batch: ObservationBatch) -> np.ndarray:
        prompts = [prompt] * len(batch.state)
        inputs = policy.make_inputs(batch.state, batch.images, batch.objects, prompts)
        noise = settings.noise_scale * scene_noise(batch, (config.action_horizon, config.action_dim))
        raw = np.asarray(_sample(policy.params, config, inputs, noise, settings.flow_steps))
        raw = raw[..., : policy.features.action_dim]
        actions = unnormalize(raw, stats.action_mean, stats.action_std).astype(np.float32)
        return to_absolute(actions, batch.state, mask)

    return infer


def scene_noise(batch: ObservationBatch, shape: tuple[int, int]) -> np.ndarray:
    """float32 [B, H, A], standard normal; a row depends on its scene's seed and control step alone."""
    pairs = zip(batch.seed.tolist(), batch.step.tolist(), strict=True)
    return np.stack([np.random.default_rng(pair).standard_normal(shape, np.float32) for pair in pairs])
