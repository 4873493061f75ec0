"""Which token may look at which. Shape letters: B batch, T tokens, P prefix tokens, S suffix tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def attention_mask(valid: jax.Array, block_start: jax.Array) -> jax.Array:
    """valid bool [B, T], block_start bool [T] -> bool [B, query T, key T].

    Tokens between two block starts see each other; a later block sees the earlier ones, never the reverse.
    """
    block = jnp.cumsum(block_start)
    earlier = block[None, :] <= block[:, None]
    return earlier[None] & valid[:, None, :] & valid[:, :, None]


def positions(valid: jax.Array) -> jax.Array:
    """valid bool [B, T] -> int32 [B, T]; padding does not advance the count."""
    return jnp.cumsum(valid, axis=-1, dtype=jnp.int32) - 1


def cached_mask(prefix_valid: jax.Array, suffix_valid: jax.Array, block_start: jax.Array) -> jax.Array:
    """bool [B, S, P + S]: what the suffix sees when the prefix comes from the cache."""
    to_prefix = suffix_valid[:, :, None] & prefix_valid[:, None, :]
    return jnp.concatenate([to_prefix, attention_mask(suffix_valid, block_start)], axis=-1)


def cached_positions(prefix_valid: jax.Array, suffix_valid: jax.Array) -> jax.Array:
    """int32 [B, S]: the suffix counts on from the valid prefix tokens."""
    return jnp.sum(prefix_valid, axis=-1, dtype=jnp.int32)[:, None] + positions(suffix_valid)
