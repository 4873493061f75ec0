"""Run by the tests, or by hand, in an environment with google-tunix: its loss and advantages on given random inputs.

    python -m venv tunix && tunix/bin/pip install google-tunix==0.1.7
    tunix/bin/python tests/planner/tunix_check.py OUT.npz [SEED]

It imports nothing of this project. `sampler_is_weights` repeats, line by line, what tunix's agentic GRPO learner does
before its loss with sampler_is="token": it is inside a method of the learner, which needs a whole cluster to exist.
"""

from __future__ import annotations

import importlib.metadata
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.rl import algo_core, common
from tunix.rl.agentic.agentic_grpo_learner import GRPOConfig

B, P, R, VOCABULARY, PAD, END, ATTEMPTS = 36, 3, 9, 13, 0, 1, 6
CLIP_LOW, CLIP_HIGH, DUAL_CLIP, CAP = 0.2, 0.28, 3.0, 2.0
MODES = {"token": "token-mean", "sequence": "sequence-mean-token-mean"}


class Table(nnx.Module):
    """A model whose logits are its parameters, so that the gradient of the loss is one for each logit."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = nnx.Param(jnp.asarray(logits))

    def __call__(self, tokens, positions=None, cache=None, attention_mask=None):  # type: ignore[no-untyped-def]
        return self.logits[...], None


def random_inputs(seed: int) -> dict[str, np.ndarray]:
    """Ratios on both sides of every clip, backends that differ beyond the cap, responses of every length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, R + 1, B)
    mask = np.arange(R)[None] < lengths[:, None]
    targets = np.where(mask, rng.integers(2, VOCABULARY, (B, R)), PAD)
    logits = rng.normal(0.0, 1.5, (B, P + R, VOCABULARY)).astype(np.float32)
    logprob = np.asarray(jax.nn.log_softmax(jnp.asarray(logits[:, P - 1 : -1])))
    logprob = np.take_along_axis(logprob, targets[..., None], -1)[..., 0]
    rewards = rng.integers(0, 2, B).astype(np.float32)
    rewards[:ATTEMPTS] = 1.0  # a group without contrast
    old = logprob + rng.normal(0.0, 1.2, (B, R)).astype(np.float32)
    rollout = old + rng.normal(0.0, 0.6, (B, R)).astype(np.float32)
    return {
        "logits": logits, "targets": targets.astype(np.int32), "mask": mask.astype(np.int32),
        "prompt": np.full((B, P), 2, np.int32), "rewards": rewards, "old_logprob": old.astype(np.float32),
        "rollout_logprob": rollout.astype(np.float32),
    }  # fmt: skip


def sampler_is_weights(trainer: np.ndarray, rollout: np.ndarray, mask: np.ndarray) -> jax.Array:
    """As in `agentic_grpo_learner.GRPOLearner`, threshold as its default."""
    log_ratio = jnp.clip(trainer - rollout, min=-20.0, max=20.0)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(log_ratio), GRPOConfig.sampler_is_threshold) * mask)


def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Losses and their gradients by the logits, for every way of normalising, and the advantages and weights."""
    assert GRPOConfig.sampler_is_threshold == CAP, "tunix's default cap has changed"
    advantages = np.asarray(algo_core.compute_rloo_advantages(jnp.asarray(inputs["rewards"]), ATTEMPTS))
    weights = sampler_is_weights(inputs["old_logprob"], inputs["rollout_logprob"], inputs["mask"])
    example = common.TrainExample(
        prompt_ids=jnp.asarray(inputs["prompt"]), prompt_mask=jnp.ones((B, P), jnp.int32),
        completion_ids=jnp.asarray(inputs["targets"]), completion_mask=jnp.asarray(inputs["mask"]),
        advantages=jnp.asarray(advantages), ref_per_token_logps=None,
        old_per_token_logps=jnp.asarray(inputs["old_logprob"]), sampler_is_weights=weights,
    )  # fmt: skip
    found = {"advantages": advantages, "weights": np.asarray(weights)}
    for name, mode in MODES.items():
        config = types.SimpleNamespace(
            beta=0.0, epsilon=CLIP_LOW, epsilon_high=CLIP_HIGH, epsilon_c=DUAL_CLIP, loss_algo="grpo",
            loss_agg_mode=mode, temperature=1.0,
        )  # fmt: skip
        loss = lambda model, c=config: algo_core.grpo_loss_fn(model, example, c, PAD, END)  # noqa: E731
        (value, _), gradient = nnx.value_and_grad(loss, has_aux=True)(Table(inputs["logits"]))
        found[f"loss_{name}"] = np.asarray(value)
        found[f"gradient_{name}"] = np.asarray(jax.tree.leaves(gradient)[0])
    return found


def main() -> None:
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    inputs = random_inputs(seed)
    version = np.array(importlib.metadata.version("google-tunix"))
    constants = np.array([CLIP_LOW, CLIP_HIGH, DUAL_CLIP, CAP], np.float32)
    np.savez_compressed(sys.argv[1], version=version, constants=constants, attempts=ATTEMPTS, **inputs, **run(inputs))


if __name__ == "__main__":
    main()
