"""The packed layout computes what the modules compute."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.models.packed import pack, sample_packed
from cel_jax.models.pi0 import sample_actions
from tests.models.robots import noisy_params, random_inputs, tiny


def both(config, batch=2, steps=3):  # type: ignore[no-untyped-def]
    params, inputs = noisy_params(config), random_inputs(config, batch)
    masks = {key: jnp.asarray([i == 0] + [True] * (batch - 1)) for i, key in enumerate(config.image_keys)}
    inputs = inputs.replace(image_masks=masks)
    noise = jax.random.normal(jax.random.key(3), (batch, config.action_horizon, config.action_dim))
    theirs = jax.jit(functools.partial(sample_actions, config=config, num_steps=steps))(
        params, inputs=inputs, noise=noise
    )
    packed = jax.jit(pack, static_argnums=1)(params, config)
    ours = jax.jit(sample_packed, static_argnums=(1, 4))(packed, config, inputs, noise, steps)
    return np.asarray(ours), np.asarray(theirs)


def with_rank(config, rank=3, scale=2.0):  # type: ignore[no-untyped-def]
    change = functools.partial(dataclasses.replace, lora_rank=rank, lora_scale=scale)
    return dataclasses.replace(config, paligemma=change(config.paligemma), action_expert=change(config.action_expert))


@pytest.mark.parametrize(
    "config",
    [
        tiny("images"),
        tiny("state"),
        tiny("images", pi05=True),
        with_rank(tiny("images")),
        dataclasses.replace(
            tiny("state"),
            paligemma=dataclasses.replace(tiny().paligemma, num_kv_heads=4),
            action_expert=dataclasses.replace(tiny().action_expert, num_kv_heads=4),
        ),
    ],
    ids=["images", "objects", "pi05", "lora", "all heads"],
)
def test_packed_equals_the_modules(config) -> None:  # type: ignore[no-untyped-def]
    with jax.default_matmul_precision("highest"):
        ours, theirs = both(config)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_packing_keeps_the_dtype_and_the_number_of_weights() -> None:
    config = tiny("images")
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), noisy_params(config))
    packed = jax.jit(pack, static_argnums=1)(params, config)
    assert {leaf.dtype for leaf in jax.tree.leaves(packed)} == {jnp.dtype(jnp.bfloat16)}
    assert sum(leaf.size for leaf in jax.tree.leaves(packed)) == sum(leaf.size for leaf in jax.tree.leaves(params))
