"""Invariants 1, 3 and 4: what has a gradient, what is bounded, what is detached."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.planner.losses import (
    PpoParams,
    dual_clip_loss,
    masked_mean,
    rl_token_loss,
    sample_weights,
    token_logprobs,
    truncated_weight,
)

PARAMS = PpoParams()


def _loss_and_slope(ratio: float, advantage: float) -> tuple[float, float]:
    old = jnp.float32(-1.0)
    at = old + jnp.log(jnp.float32(ratio))
    return tuple(map(float, jax.value_and_grad(lambda x: dual_clip_loss(x, old, jnp.float32(advantage), PARAMS))(at)))


def test_negative_advantage_is_bounded_and_flat_for_an_exploding_ratio() -> None:
    for ratio in (3.5, 100.0, 1e8):
        loss, slope = _loss_and_slope(ratio, -0.7)
        assert loss == pytest.approx(3.0 * 0.7) and slope == 0.0
    assert np.isfinite(float(dual_clip_loss(jnp.float32(200.0), jnp.float32(-200.0), jnp.float32(-1.0), PARAMS)))


@pytest.mark.parametrize(
    "ratio,advantage,flat",
    [
        (1.3, 1.0, True),
        (1.2, 1.0, False),
        (0.5, 1.0, False),
        (0.75, -1.0, True),
        (0.9, -1.0, False),
        (2.0, -1.0, False),
    ],
)
def test_gradient_vanishes_exactly_where_the_clip_says(ratio: float, advantage: float, flat: bool) -> None:
    loss, slope = _loss_and_slope(ratio, advantage)
    assert (slope == 0.0) == flat
    if not flat:
        assert loss == pytest.approx(-ratio * advantage, rel=1e-5)
        assert slope == pytest.approx(-ratio * advantage, rel=1e-5)


def test_weight_is_capped_and_one_where_the_backends_agree() -> None:
    q = jnp.array([-1.0, -1.0, -1.0, -1.0])
    b = jnp.array([-1.0, -5.0, -1.5, -0.5])
    weights = truncated_weight(q, b, 2.0)
    np.testing.assert_allclose(weights, [1.0, 2.0, np.exp(0.5), np.exp(-0.5)], rtol=1e-6)
    assert np.isfinite(truncated_weight(jnp.float32(0.0), jnp.float32(-1e4), 2.0))


def test_nothing_flows_through_the_weight() -> None:
    logprob, b = jnp.full((1, 2), -1.0), jnp.array([[-1.2, -0.3]])
    total = lambda q: rl_token_loss(logprob, q, b, jnp.array([0.5]), PARAMS).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(total)(jnp.full((1, 2), -1.0)), 0.0)


def test_agreeing_backends_give_plain_ppo() -> None:
    rng = np.random.default_rng(0)
    new, q = jnp.asarray(-rng.random((3, 5))), jnp.asarray(-rng.random((3, 5)))
    advantage = jnp.array([1.0, 0.2, 0.6])
    ratio = np.exp(np.asarray(new - q))
    plain = np.maximum(-ratio * advantage[:, None], -np.clip(ratio, 0.8, 1.28) * advantage[:, None])
    np.testing.assert_allclose(rl_token_loss(new, q, q, advantage, PARAMS), plain, rtol=1e-5)


def test_padding_and_its_infinities_have_no_gradient() -> None:
    values, mask = jnp.array([[1.0, jnp.inf], [2.0, 4.0]]), jnp.array([[1, 0], [1, 1]])
    np.testing.assert_allclose(masked_mean(values, mask), [1.0, 3.0])
    assert np.isfinite(jax.grad(lambda v: masked_mean(v, mask).sum())(values)).all()


def test_token_logprobs_are_normalised_in_float32() -> None:
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 7)), jnp.bfloat16)
    every = jnp.stack([token_logprobs(logits, jnp.full((2, 3), k)) for k in range(7)])
    assert every.dtype == jnp.float32
    np.testing.assert_allclose(jnp.exp(every).sum(0), 1.0, rtol=1e-5)


def test_normalizers_weigh_tokens_samples_or_episodes() -> None:
    mask = jnp.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    consistent, episode_tokens = jnp.array([1.0, 1.0, 0.0]), jnp.array([4.0, 4.0, 2.0])
    np.testing.assert_allclose(sample_weights(mask, consistent, episode_tokens, "token"), [3, 1, 0])
    np.testing.assert_allclose(sample_weights(mask, consistent, episode_tokens, "sequence"), [1, 1, 0])
    np.testing.assert_allclose(sample_weights(mask, consistent, episode_tokens, "episode"), [0.75, 0.25, 0])
    with pytest.raises(ValueError, match="expected token, sequence or episode"):
        sample_weights(mask, consistent, episode_tokens, "mean")
