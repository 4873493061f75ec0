"""The network beyond the fixtures: experts of different widths, objects, several actions per token, masks."""

from __future__ import annotations

import dataclasses
import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.models import pi0
from cel_jax.models.inputs import ModelInputs, resize_with_pad, to_float
from cel_jax.models.pi0 import Pi0, init_params, param_shapes
from tests.models.robots import noisy_params, random_inputs, tiny

MODES = ("state", "images")
velocity = jax.jit(pi0.velocity, static_argnums=1)
flow_loss = jax.jit(pi0.flow_loss, static_argnums=1)
sample_actions = jax.jit(pi0.sample_actions, static_argnums=(1, 4))
vision_tokens = jax.jit(pi0.vision_tokens, static_argnums=1)


@functools.partial(jax.jit, static_argnums=1)
def gradients(params, config, inputs, actions, mask):
    return jax.grad(lambda p: pi0.flow_loss(p, config, inputs, actions, mask, jax.random.key(1))[0])(params)


@functools.partial(jax.jit, static_argnums=1)
def cached_velocity(params, config, inputs, x_t, time):
    call = functools.partial(Pi0(config).apply, {"params": params})
    cache, valid = call(inputs, method="encode_prefix")
    return call(cache, valid, inputs.state, x_t, time, method="cached_velocity")


def point(config, batch, seed=3):
    rng = np.random.default_rng(seed)
    x_t = jnp.asarray(rng.normal(size=(batch, config.action_horizon, config.action_dim)), jnp.float32)
    return x_t, jnp.asarray(rng.uniform(0.01, 1, batch), jnp.float32)


@pytest.mark.parametrize("pi05", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_cached_velocity_equals_joint_pass(mode: str, pi05: bool) -> None:
    config = tiny(mode, pi05=pi05)
    params, inputs, (x_t, time) = noisy_params(config), random_inputs(config, 3), point(config, 3)
    cached = cached_velocity(params, config, inputs, x_t, time)
    np.testing.assert_allclose(cached, velocity(params, config, inputs, x_t, time), atol=2e-5)


def test_sampler_is_euler_integration_of_the_velocity() -> None:
    config = tiny()
    params, inputs, (noise, _) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    x, steps = noise, 4
    for i in range(steps):
        x = x - velocity(params, config, inputs, x, jnp.full((2,), 1 - i / steps)) / steps
    np.testing.assert_allclose(sample_actions(params, config, inputs, noise, steps), x, atol=5e-4)
    with pytest.raises(ValueError, match="num_steps"):
        sample_actions(params, config, inputs, noise, 0)


@pytest.mark.parametrize("mode", MODES)
def test_padding_is_never_seen(mode: str) -> None:
    """Padded prompt tokens and absent cameras change nothing."""
    config = tiny(mode)
    params, inputs, (x_t, time) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    if mode == "images":
        inputs = inputs.replace(image_masks={"wrist": jnp.zeros(2, bool)})
    base = velocity(params, config, inputs, x_t, time)
    other = inputs.replace(tokens=jnp.where(inputs.token_mask, inputs.tokens, 77))
    if mode == "images":
        other = other.replace(images=inputs.images | {"wrist": -inputs.images["wrist"]})
    np.testing.assert_allclose(velocity(params, config, other, x_t, time), base, atol=1e-6)
    seen = inputs.replace(tokens=inputs.tokens.at[:, 0].set(9))
    assert np.abs(velocity(params, config, seen, x_t, time) - base).max() > 1e-3


def test_an_absent_camera_equals_a_network_without_it() -> None:
    config = tiny("images")
    params, inputs, (x_t, time) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    absent = inputs.replace(image_masks={"wrist": jnp.zeros(2, bool)})
    alone = dataclasses.replace(config, image_keys=("head",))
    expected = velocity(params, alone, inputs, x_t, time)
    np.testing.assert_allclose(velocity(params, config, absent, x_t, time), expected, atol=1e-5)


@pytest.mark.parametrize("what", ["objects", "state", "tokens"])
def test_every_input_matters(what: str) -> None:
    config = tiny()
    params, inputs, (x_t, time) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    changed = inputs.replace(**{what: jnp.roll(getattr(inputs, what), 1, axis=-1)})
    moved = velocity(params, config, changed, x_t, time) - velocity(params, config, inputs, x_t, time)
    assert np.abs(moved).max() > 1e-3


def test_padded_steps_carry_no_loss_and_no_gradient() -> None:
    config = tiny()
    params, inputs, (actions, _) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    mask = jnp.asarray([[True] * 6, [True] * 2 + [False] * 4])
    rng = jax.random.key(0)
    loss, per_sample = flow_loss(params, config, inputs, actions, mask, rng)
    assert loss == pytest.approx(float(per_sample.mean()), rel=1e-6)
    full, _ = flow_loss(params, config, inputs, actions, jnp.ones_like(mask), rng)
    assert abs(float(full - loss)) > 1e-4
    none, zeros = flow_loss(params, config, inputs, actions, jnp.zeros_like(mask), rng)
    assert none == 0 and not zeros.any()
    grads = gradients(params, config, inputs, actions, jnp.zeros_like(mask))
    assert all(not leaf.any() for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["all", "gate", "wide", "dots"])
def test_remat_and_unroll_change_nothing(remat: str) -> None:
    config = tiny("images")
    params, inputs, (actions, _) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    mask = jnp.ones((2, config.action_horizon), bool)
    ours = gradients(params, config, inputs, actions, mask)
    other = gradients(params, dataclasses.replace(config, remat=remat, unroll=2), inputs, actions, mask)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, other)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_every_parameter(mode: str) -> None:
    """Except what nothing reads: the prefix's final norm; and key biases of the tower, which a softmax cancels."""
    config = tiny(mode)
    params, inputs, (actions, _) = noisy_params(config), random_inputs(config, 4), point(config, 4)
    mask = jnp.ones((4, config.action_horizon), bool)
    grads = gradients(params, config, inputs, actions, mask)
    still = {k for k, v in flax.traverse_util.flatten_dict(grads, sep="/").items() if not np.abs(v).max() > 1e-8}
    cancels = {"PaliGemma/img/Transformer/encoderblock/MultiHeadDotProductAttention_0/key/bias"}
    assert still - cancels == {"PaliGemma/llm/final_norm/scale"}


def test_short_actions_and_states_are_padded_with_zeros() -> None:
    config = tiny()
    params, inputs, (actions, _) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    mask, rng = jnp.ones((2, 6), bool), jax.random.key(2)
    short = flow_loss(params, config, inputs.replace(state=inputs.state[:, :4]), actions[..., :3], mask, rng)[0]
    padded = inputs.replace(state=inputs.state.at[:, 4:].set(0))
    assert short == flow_loss(params, config, padded, actions.at[..., 3:].set(0), mask, rng)[0]
    with pytest.raises(ValueError, match="actions has 9"):
        flow_loss(params, config, inputs, jnp.zeros((2, 6, 9)), mask, rng)


def test_wrong_inputs_are_named() -> None:
    config = tiny()
    params, inputs, (x_t, time) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    with pytest.raises(ValueError, match="objects"):
        velocity(params, config, inputs.replace(objects=None), x_t, time)
    with pytest.raises(ValueError, match="token"):
        velocity(params, config, inputs.replace(tokens=inputs.tokens[:, :5]), x_t, time)
    config = tiny("images")
    params, inputs = noisy_params(config), random_inputs(config, 2)
    with pytest.raises(ValueError, match="wrist"):
        velocity(params, config, inputs.replace(images={"head": inputs.images["head"]}), x_t, time)


def test_vision_tokens_are_the_towers_normalised_output() -> None:
    config = tiny("images")
    params, inputs = noisy_params(config), random_inputs(config, 2)
    tokens = vision_tokens(params, config, inputs.images["head"])
    assert tokens.shape == (2, 4, 16)
    head = params["PaliGemma"]["img"]["head"]
    through = tokens @ head["kernel"] + head["bias"]
    prefix = jax.jit(functools.partial(Pi0(config).apply, method="embed_prefix"))({"params": params}, inputs)
    np.testing.assert_allclose(prefix.x[:, :4], through, atol=1e-5)


def test_resize_keeps_aspect_and_pads_black() -> None:
    image = jnp.full((1, 24, 32, 3), 255, jnp.uint8)
    out = resize_with_pad(to_float(image), 16)
    assert out.shape == (1, 16, 16, 3)
    np.testing.assert_array_equal(out[0, :2], -1)
    np.testing.assert_array_equal(out[0, 14:], -1)
    np.testing.assert_allclose(out[0, 2:14], 1, atol=1e-6)


def test_fused_qkv_when_every_head_has_its_keys() -> None:
    config = tiny()
    experts = {k: dataclasses.replace(getattr(config, k), num_kv_heads=4) for k in ("paligemma", "action_expert")}
    config = dataclasses.replace(config, **experts)
    shapes = flax.traverse_util.flatten_dict(param_shapes(config), sep="/")
    assert shapes["PaliGemma/llm/layers/attn/qkv_einsum_1/w"].shape == (2, 3, 4, 32, 8)
    params, inputs, (x_t, time) = noisy_params(config), random_inputs(config, 2), point(config, 2)
    assert np.isfinite(velocity(params, config, inputs, x_t, time)).all()


def test_inputs_are_a_pytree() -> None:
    inputs = random_inputs(tiny("images"), 2)
    assert isinstance(jax.tree.map(lambda x: x[:1], inputs), ModelInputs)


def test_fresh_parameters_are_the_same_under_jit_and_give_finite_output() -> None:
    config = tiny()
    params = init_params(config, jax.random.key(4))
    again = jax.jit(functools.partial(init_params, config))(jax.random.key(4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, again)
    other = init_params(config, jax.random.key(5))
    assert np.abs(other["state_proj"]["kernel"] - params["state_proj"]["kernel"]).max() > 1e-2
    inputs, (x_t, time) = random_inputs(config, 2), point(config, 2)
    assert np.isfinite(velocity(params, config, inputs, x_t, time)).all()
