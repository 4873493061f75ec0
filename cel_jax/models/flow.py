"""Flow matching as openpi has it: time 1 is noise, time 0 is data (paper equations 42, 43).

Shape letters: B batch, H action horizon, A action numbers, D embedding width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


def sample_time(rng: jax.Array, batch: int) -> jax.Array:
    """f32 [B] in [0.001, 1]: Beta(1.5, 1) * 0.999 + 0.001, so noisy times are drawn more often.

    Beta(a, 1) has the distribution function t ** a, so its inverse draws it exactly, without rejection.
    """
    return jax.random.uniform(rng, (batch,)) ** (1 / 1.5) * 0.999 + 0.001


def interpolate(actions: jax.Array, noise: jax.Array, time: jax.Array) -> jax.Array:
    """x_t [B, H, A] = time * noise + (1 - time) * actions; time [B]."""
    t = time[:, None, None]
    return t * noise + (1 - t) * actions


def target_velocity(actions: jax.Array, noise: jax.Array) -> jax.Array:
    """u [B, H, A] = noise - actions, the derivative of x_t by time."""
    return noise - actions


def loss_per_step(velocity: jax.Array, target: jax.Array) -> jax.Array:
    """f32 [B, H]: squared error, mean over the A action numbers."""
    return jnp.mean(jnp.square(velocity.astype(jnp.float32) - target), axis=-1)


def masked_loss(per_step: jax.Array, action_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """per_step [B, H], action_mask bool [B, H] -> mean over samples, and per sample [B] the mean over valid steps.

    Every chunk weighs the same (equation 13), however many of its steps lie past the episode's end; a chunk
    without a valid step has loss 0.
    """
    weight = action_mask.astype(jnp.float32)
    kept = jnp.where(action_mask, per_step, 0.0)
    per_sample = jnp.sum(kept, axis=-1) / jnp.maximum(jnp.sum(weight, axis=-1), 1.0)
    return jnp.mean(per_sample), per_sample


def embed_time(time: jax.Array, width: int) -> jax.Array:
    """f32 [B] -> f32 [B, D]: sines then cosines at D / 2 periods from 4e-3 to 4, in geometric steps."""
    if width % 2:
        raise ValueError(f"the time embedding needs an even width, got {width}")
    fraction = jnp.linspace(0.0, 1.0, width // 2)
    period = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** fraction
    angle = time[:, None] * (1.0 / period * 2 * jnp.pi)[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
