"""Serving: padding, chunks, seeds, normalisation, delta actions, no compilation after warming."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import PolicyConfig
from cel_jax.data.actions import to_absolute
from cel_jax.models import policy as policy_module
from cel_jax.models.pi0 import sample_actions
from cel_jax.models.policy import Policy
from cel_jax.models.presets import make_config
from tests.models.robots import DELTA, POLICY, features, noisy_params, norm_stats, observations, tiny_policy

MODES = ("state", "images")


@pytest.mark.parametrize("mode", MODES)
def test_actions_do_not_depend_on_padding_or_pieces(mode: str) -> None:
    policy = tiny_policy(mode)
    batch = observations(mode, 3)
    cold = policy.infer(*batch, seed=5)
    assert cold.shape == (3, 6, 5) and cold.dtype == np.float32
    policy.warm([8])
    np.testing.assert_allclose(policy.infer(*batch, seed=5), cold, atol=1e-4)
    assert np.abs(policy.infer(*batch, seed=6) - cold).max() > 1e-2
    other = tiny_policy(mode)
    other.warm([2])
    pieces = other.infer(*batch, seed=5)
    np.testing.assert_allclose(pieces[:2], cold[:2], atol=1e-4)
    assert pieces.shape == cold.shape and np.abs(pieces[2] - cold[2]).max() > 1e-3


def test_rows_have_noise_of_their_own() -> None:
    policy = tiny_policy()
    states, images, objects, prompts = (x if isinstance(x, dict) else x[:1] for x in observations("state", 1))
    twice = policy.infer(np.repeat(states, 2, 0), images, np.repeat(objects, 2, 0), prompts * 2, seed=1)
    assert np.abs(twice[0] - twice[1]).max() > 1e-2


def test_noise_of_scale_zero_leaves_nothing_to_chance() -> None:
    policy = tiny_policy("state")
    calm = policy.with_sampling(dataclasses.replace(policy.policy_config, noise_scale=0.0))
    seen = observations("state", 2)
    np.testing.assert_array_equal(calm.infer(*seen, seed=1), calm.infer(*seen, seed=2))
    assert np.abs(policy.infer(*seen, seed=1) - policy.infer(*seen, seed=2)).max() > 1e-3


def test_the_chain_of_transforms_literally() -> None:
    """normalise -> sample -> undo the statistics -> add the raw state where the mask says so."""
    policy, stats = tiny_policy(), norm_stats(features())
    states, images, objects, prompts = observations("state", 2)
    inputs = policy.make_inputs(states, images, objects, prompts)
    np.testing.assert_allclose(inputs.state, (states - stats.state_mean) / (stats.state_std + 1e-6), rtol=1e-6)
    np.testing.assert_allclose(inputs.objects, (objects - stats.objects_mean) / (stats.objects_std + 1e-6), rtol=1e-5)
    keys = [jax.random.fold_in(jax.random.key(9), row) for row in range(2)]
    noise = jnp.stack([jax.random.normal(key, (6, 5)) for key in keys])
    raw = np.asarray(
        jax.jit(sample_actions, static_argnums=(1, 4))(
            policy.params, policy.config, jax.tree.map(jnp.asarray, inputs), noise, 3
        )
    )
    expected = raw * (stats.action_std + 1e-6) + stats.action_mean
    expected = expected + np.where(DELTA, states[:, :5], 0)[:, None]
    np.testing.assert_allclose(policy.infer(states, images, objects, prompts, seed=9), expected, atol=2e-4)
    assert to_absolute(raw, states, DELTA).shape == raw.shape


@pytest.mark.parametrize("mode", MODES)
def test_nothing_compiles_after_warming(mode: str) -> None:
    policy = tiny_policy(mode)
    policy.warm([1, 4])
    count = policy_module._sample._cache_size()
    for batch in (1, 2, 3, 4, 7):
        policy.infer(*observations(mode, batch), seed=batch)
    renewed = policy.with_params(noisy_params(policy.config, seed=8))
    assert renewed.warmed == (1, 4)
    before = policy.infer(*observations(mode, 2), seed=0)
    assert np.abs(renewed.infer(*observations(mode, 2), seed=0) - before).max() > 1e-3
    assert policy_module._sample._cache_size() == count


def test_a_padded_network_serves_the_robots_own_sizes() -> None:
    """As pi0 does with 32 numbers; statistics stay unpadded, also per dimension [A]."""
    robot = features("images")
    base = tiny_policy("images").config
    config = dataclasses.replace(base, action_dim=12, state_dim=12, pi05=True, discrete_state_input=True)
    config = dataclasses.replace(config, max_token_len=64)
    stats = norm_stats(robot)
    stats = dataclasses.replace(stats, action_mean=stats.action_mean[0], action_std=stats.action_std[0])
    policy = Policy(config, noisy_params(config), stats, robot, POLICY)
    states, images, objects, _ = observations("images", 2)
    actions = policy.infer(states, images, objects, ["Go.", "Go."], seed=0)
    assert actions.shape == (2, 6, 5)
    moved = policy.infer(states + np.eye(7)[3], images, objects, ["Go.", "Go."], seed=0)
    assert np.abs(moved - actions).max() > 1e-4  # pi0.5 reads the state from the prompt


def test_observations_that_do_not_fit_are_named() -> None:
    policy = tiny_policy()
    states, images, objects, prompts = observations("state", 2)
    for wrong in [
        (states[:, :6], images, objects, prompts),
        (states, images, None, prompts),
        (states, images, objects[:, :2], prompts),
        (states, images, objects, prompts[:1]),
        (states[:0], images, objects[:0], []),
    ]:
        with pytest.raises(ValueError, match="do not fit the robot"):
            policy.infer(*wrong, seed=0)
    states, images, objects, prompts = observations("images", 2)
    with pytest.raises(ValueError, match="wrist"):
        tiny_policy("images").infer(states, {"head": images["head"]}, objects, prompts, seed=0)
    with pytest.raises(ValueError, match="positive"):
        policy.warm([0])


def test_actions_that_are_not_finite_never_leave() -> None:
    policy = tiny_policy()
    batch = observations("state", 2)
    batch[0][1, 0] = np.nan
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        policy.infer(*batch, seed=0)


def test_statistics_that_do_not_fit_are_named() -> None:
    robot = features()
    config = make_config("nano", robot, POLICY)
    params = noisy_params(config)
    with pytest.raises(ValueError, match="action_mean"):
        Policy(config, params, norm_stats(robot, horizon=7), robot, POLICY)
    bare = dataclasses.replace(norm_stats(robot), objects_mean=None, objects_std=None)
    with pytest.raises(ValueError, match="objects_mean None"):
        Policy(config, params, bare, robot, PolicyConfig(action_horizon=6))
