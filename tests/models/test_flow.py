"""Flow matching against its formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.models import flow, masks


def test_time_follows_beta() -> None:
    """Beta(1.5, 1) has distribution t ** 1.5: mean 0.6, and the largest gap to it is small."""
    time = np.sort(np.asarray(flow.sample_time(jax.random.key(0), 20_000), np.float64))
    assert time[0] >= 0.001 and time[-1] <= 1.0
    expected = ((time - 0.001) / 0.999) ** 1.5
    assert np.abs(expected - (np.arange(20_000) + 0.5) / 20_000).max() < 0.012


def test_ends_of_the_flow() -> None:
    rng = np.random.default_rng(0)
    actions, noise = (jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32) for _ in range(2))
    np.testing.assert_array_equal(flow.interpolate(actions, noise, jnp.asarray([0.0, 1.0]))[0], actions[0])
    np.testing.assert_array_equal(flow.interpolate(actions, noise, jnp.asarray([0.0, 1.0]))[1], noise[1])
    step = flow.interpolate(actions, noise, jnp.full(2, 0.51)) - flow.interpolate(actions, noise, jnp.full(2, 0.5))
    np.testing.assert_allclose(step / 0.01, flow.target_velocity(actions, noise), atol=1e-4)


def test_masked_loss_weighs_every_chunk_the_same() -> None:
    per_step = jnp.asarray([[1.0, 2.0, 6.0], [4.0, jnp.nan, 100.0]])
    mask = jnp.asarray([[True, True, True], [True, False, False]])
    loss, per_sample = flow.masked_loss(per_step, mask)
    np.testing.assert_allclose(per_sample, [3.0, 4.0])
    assert loss == 3.5


def test_odd_widths_have_no_time_embedding() -> None:
    with pytest.raises(ValueError, match="even"):
        flow.embed_time(jnp.ones(1), 7)


def test_attention_blocks_literally() -> None:
    valid = jnp.asarray([[True, False, True, True, True]])
    start = jnp.asarray([False, False, True, True, False])
    block = [0, 0, 1, 2, 2]
    expected = [[bool(valid[0, i] and valid[0, j] and block[j] <= block[i]) for j in range(5)] for i in range(5)]
    np.testing.assert_array_equal(masks.attention_mask(valid, start)[0], expected)
    np.testing.assert_array_equal(masks.positions(valid)[0], [0, 0, 1, 2, 3])


def test_cached_masks_are_the_joint_ones() -> None:
    prefix, suffix = jnp.asarray([[True, True, False]]), jnp.ones((1, 3), bool)
    start = jnp.asarray([False] * 3 + [True, True, False])
    both = jnp.concatenate([prefix, suffix], axis=1)
    np.testing.assert_array_equal(
        masks.cached_mask(prefix, suffix, start[3:]), masks.attention_mask(both, start)[:, 3:]
    )
    np.testing.assert_array_equal(masks.cached_positions(prefix, suffix), masks.positions(both)[:, 3:])
