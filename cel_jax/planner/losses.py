"""Token losses of planner post-training (specification 4 and 5.6), pure.

Shape letters: B samples, R response tokens (padded on the right). mask bool or float [B, R]: 1 for response tokens,
the end token among them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class PpoParams:
    """The constants of equations 6 and 7: C, eps-, eps+ and d."""

    weight_cap: float = 2.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0


def truncated_weight(train_logprob: jax.Array, rollout_logprob: jax.Array, cap: float) -> jax.Array:
    """w = sg[min{q / b, C}] (equation 6): q by the training backend, b recorded by the rollout. [B, R] -> [B, R]."""
    # The cap is applied to the logarithm, so that no overflow comes before it.
    log_ratio = jnp.minimum(train_logprob - rollout_logprob, jnp.log(cap))
    return jax.lax.stop_gradient(jnp.exp(log_ratio))


def dual_clip_loss(logprob: jax.Array, old_logprob: jax.Array, advantage: jax.Array, params: PpoParams) -> jax.Array:
    """Dual-clip PPO of one token (Ye et al. 2020), without the weight. [B, R], advantage broadcast -> [B, R].

    r = exp(logprob - old_logprob). For A < 0 the loss is at most -d A, however large r is.
    """
    # Beyond exp(20) every branch is clipped; the bound keeps the unused branch of `where` from giving inf * 0.
    ratio = jnp.exp(jnp.clip(logprob - jax.lax.stop_gradient(old_logprob), -20.0, 20.0))
    clipped = jnp.clip(ratio, 1.0 - params.clip_low, 1.0 + params.clip_high)
    ppo = jnp.maximum(-ratio * advantage, -clipped * advantage)
    return jnp.where(advantage >= 0, ppo, jnp.minimum(ppo, -params.dual_clip * advantage))


def rl_token_loss(
    logprob: jax.Array, train_logprob: jax.Array, rollout_logprob: jax.Array, advantage: jax.Array, params: PpoParams
) -> jax.Array:
    """w * l_dual for every token [B, R]; advantage [B]. logprob: under theta; train_logprob: q; rollout_logprob: b."""
    weight = truncated_weight(train_logprob, rollout_logprob, params.weight_cap)
    return weight * dual_clip_loss(logprob, train_logprob, advantage[:, None], params)


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over the response tokens of every sample: [B, R] -> [B]; 0 for a sample without tokens."""
    mask = mask.astype(values.dtype)
    # `where` and not a product: padding may hold infinities.
    return jnp.where(mask > 0, values, 0.0).sum(-1) / jnp.maximum(mask.sum(-1), 1.0)


def token_logprobs(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """log pi(target) in float32. logits [B, R, vocabulary], targets int [B, R] -> [B, R]."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def sample_weights(mask: jax.Array, consistent: jax.Array, episode_tokens: jax.Array, normalizer: str) -> jax.Array:
    """[B]: what multiplies a sample's masked mean so that the weighted mean of samples is the loss with its Z.

    consistent float [B] is w0. `token`: Z counts tokens. `sequence`: samples. `episode`: every episode counts once, by
    its tokens; episode_tokens [B]: all tokens of the sample's episode that enter the round.
    """
    tokens = mask.astype(jnp.float32).sum(-1)
    if normalizer == "token":
        return consistent * tokens
    if normalizer == "sequence":
        return consistent * (tokens > 0)
    if normalizer == "episode":
        return consistent * tokens / jnp.maximum(episode_tokens, 1.0)
    raise ValueError(f"normalizer {normalizer!r}; expected token, sequence or episode")
