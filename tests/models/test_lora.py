"""LoRA: openpi's leaves beside the full tree, what is frozen, and that training moves the rest alone."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import PolicyConfig, TrainConfig
from cel_jax.fert.batches import policy_loss
from cel_jax.fert.sharding import make_mesh, put_batch
from cel_jax.fert.trainer import cast_frozen, create_state, make_optimizer, make_train_step
from cel_jax.models.gemma import Einsum
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.params_io import add_lora, flatten
from cel_jax.models.pi0 import flow_loss, param_shapes
from cel_jax.models.presets import frozen_path, make_config, without_lora
from tests.models.robots import features, noisy_params, random_inputs, tiny
from tests.models.test_packed import with_rank


@pytest.mark.parametrize(("preset", "leaves"), [("pi0_lora", 70), ("pi05_lora", 71)])
def test_leaves_beside_the_full_tree(preset: str, leaves: int) -> None:
    config = make_config(preset, features("images"), PolicyConfig(action_horizon=50))
    full = flatten(param_shapes(make_config(preset[:-5], features("images"), PolicyConfig(action_horizon=50))))
    ours = flatten(param_shapes(config))
    assert len(ours) == leaves and {name: ours[name] for name in full} == full
    shapes = {name.removeprefix("PaliGemma/llm/layers/"): leaf.shape for name, leaf in ours.items() if "lora" in name}
    assert shapes["attn/q_einsum/lora_a"] == (18, 8, 2048, 16)
    assert shapes["attn/kv_einsum_1/lora_b"] == (18, 2, 1, 32, 256)
    assert shapes["attn/attn_vec_einsum/lora_a"] == (18, 8, 256, 16)
    assert shapes["mlp/gating_einsum_lora_b"] == (18, 2, 16, 16384) and shapes["mlp_1/linear_lora_a"] == (18, 4096, 32)
    frozen = {name for name in ours if frozen_path(config, name)}
    assert frozen == {name for name in full if "/llm/" in name}
    trained = sum(math.prod(leaf.shape) for name, leaf in ours.items() if name not in frozen)
    assert 4.4e8 < trained < 4.9e8  # SigLIP, projections, factors


def test_one_expert_alone() -> None:
    config = tiny("images")
    config = dataclasses.replace(config, action_expert=dataclasses.replace(config.action_expert, lora_rank=2))
    frozen = {name for name in flatten(param_shapes(config)) if frozen_path(config, name)}
    assert frozen and all("_1/" in name and "/llm/" in name for name in frozen)
    assert not any(frozen_path(tiny("images"), name) for name in frozen)


def test_a_plain_checkpoint_gets_fresh_factors() -> None:
    config = with_rank(tiny("images"))
    plain = noisy_params(without_lora(config))
    full = add_lora(plain, config)
    assert flatten(full).keys() == flatten(param_shapes(config)).keys()
    factors = np.concatenate([np.ravel(leaf) for name, leaf in flatten(full).items() if "lora" in name])
    assert 0.009 < factors.std() < 0.011
    np.testing.assert_array_equal(full["state_proj"]["kernel"], plain["state_proj"]["kernel"])
    del plain["state_proj"]
    with pytest.raises(ValueError, match="missing state_proj/bias"):
        add_lora(plain, config)


def test_low_rank_path_is_written_out() -> None:
    """The output projection sums the first factor over heads, as openpi's equations do."""
    module = Einsum((4, 8, 6), jax.nn.initializers.normal(), 3, 0.5)
    x = jax.random.normal(jax.random.key(0), (2, 5, 4, 8))
    rng, shapes = np.random.default_rng(0), {"w": (4, 8, 6), "lora_a": (4, 8, 3), "lora_b": (4, 3, 6)}
    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    w, a, b = (np.asarray(params[name], np.float64) for name in ("w", "lora_a", "lora_b"))
    inner = np.einsum("btnh,nhl->btl", x, a)
    want = np.einsum("btnh,nhd->btd", x, w) + 0.5 * np.einsum("btl,nld->btd", inner, b)
    got = module.apply({"params": params}, "BTNH,NHD->BTD", x)
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.slow
def test_a_step_moves_what_is_trained_and_nothing_else() -> None:
    config = with_rank(tiny("images"))
    frozen, settings = (
        functools.partial(frozen_path, config),
        TrainConfig(batch_size=4, micro_batch_size=2, peak_lr=1e-2),
    )
    mesh, optimizer = make_mesh(1, jax.devices()[:1]), make_optimizer(settings, frozen)
    before = cast_frozen(noisy_params(config), frozen)
    state = create_state(before, optimizer, settings, mesh, jax.random.PRNGKey(0))
    step = make_train_step(policy_loss(flow_loss, ModelInputs, config), optimizer, mesh, settings, frozen)
    inputs = random_inputs(config, 4)
    batch = {name: getattr(inputs, name) for name in ("images", "tokens", "token_mask", "state")}
    shape = (4, config.action_horizon, config.action_dim)
    batch |= {"actions": np.ones(shape, np.float32), "action_mask": np.ones(shape[:2], bool)}
    for _ in range(2):
        state, metrics = step(state, put_batch(batch, mesh))
    assert np.isfinite(metrics["loss"])
    after, still = flatten(state.params), 0
    for name, leaf in flatten(before).items():
        assert after[name].dtype == (jnp.bfloat16 if frozen(name) else jnp.float32)
        if frozen(name):
            np.testing.assert_array_equal(np.asarray(after[name]), np.asarray(leaf), err_msg=name)
        else:
            still += int((np.asarray(after[name]) == np.asarray(leaf)).all())
    assert still == 0
    moments = [leaf.dtype for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert len(moments) == 2 * sum(not frozen(name) for name in after) and set(moments) == {jnp.dtype("float32")}
