"""Weights as bytes: whole or refused, in the dtype of inference, a snapshot outlives the state it was taken from."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.models.weights_wire import from_bytes, snapshot, to_bytes
from tests.models.robots import noisy_params, tiny

CONFIG = tiny("images")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip(dtype: str) -> None:
    params = noisy_params(CONFIG)
    block = to_bytes(snapshot(params, dtype), dtype)
    back = from_bytes(block, CONFIG)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.asarray(b).astype(a.dtype)), back, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(back)} == {jnp.dtype(dtype)}
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 0 < len(block) - numbers * jnp.dtype(dtype).itemsize < 10_000


def test_a_snapshot_outlives_a_donated_state() -> None:
    params = noisy_params(CONFIG)
    want = jax.device_get(params)
    taken = snapshot(params, "float32")
    jax.tree.map(lambda leaf: leaf.delete(), params)
    jax.tree.map(np.testing.assert_array_equal, from_bytes(to_bytes(taken, "float32"), CONFIG), want)


def test_what_is_damaged_or_of_another_network_is_refused() -> None:
    block = to_bytes(noisy_params(CONFIG), "bfloat16")
    with pytest.raises(ValueError, match="bytes came, the header says"):
        from_bytes(block[:-2], CONFIG)
    with pytest.raises(ValueError, match=r"header .* cannot be read"):
        from_bytes(b"\xff" * 64, CONFIG)
    with pytest.raises(ValueError, match="misshapen action_in_proj/kernel"):
        from_bytes(block, dataclasses.replace(CONFIG, action_dim=9, state_dim=7))
    with pytest.raises(ValueError, match="expected float32 or bfloat16"):
        to_bytes(noisy_params(CONFIG), "float16")
