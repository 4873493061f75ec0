"""Our loss and advantages equal google-tunix's on random inputs, and a literal reading of the equations where it has
none.

Compared with tunix 0.1.7: leave-one-out advantages, truncated importance weights, clipping of each token on both sides,
dual clip, the token mean, the mean over samples, and the gradient by every logit. tunix has neither a weight for each
sample (a prompt that was rendered differently) nor a mean over episodes: these are compared with the numpy twin below.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.planner.advantages import rloo_advantages
from cel_jax.planner.losses import (
    PpoParams,
    masked_mean,
    rl_token_loss,
    sample_weights,
    token_logprobs,
    truncated_weight,
)

HERE = pathlib.Path(__file__).parent
RECORDED, CHECK = HERE / "fixtures" / "tunix_loss.npz", HERE / "tunix_check.py"
PYTHON = "CEL_TUNIX_PYTHON"
TOLERANCE = 1e-5
Arrays = dict[str, Any]


def read(path: pathlib.Path) -> Arrays:
    with np.load(path, allow_pickle=False) as data:
        return dict(data)


def ours(
    logits: jax.Array, given: Arrays, normalizer: str, consistent: np.ndarray | None = None,
    episode_tokens: np.ndarray | None = None,
) -> jax.Array:  # fmt: skip
    """The loss as the trainer forms it: a mean of the samples' means, weighted by `sample_weights`."""
    low, high, dual, cap = map(float, given["constants"])
    rows, slots = given["mask"].shape
    logprob = token_logprobs(logits[:, -slots - 1 : -1], jnp.asarray(given["targets"]))
    params = PpoParams(cap, low, high, dual)
    tokens = rl_token_loss(logprob, given["old_logprob"], given["rollout_logprob"], given["advantages"], params)
    mask = jnp.asarray(given["mask"])
    ones = jnp.ones(rows)
    weights = sample_weights(
        mask, ones if consistent is None else consistent, ones if episode_tokens is None else episode_tokens, normalizer
    )
    return (weights * masked_mean(tokens, mask)).sum() / weights.sum()


def compare(given: Arrays) -> None:
    """Everything that tunix gave."""
    groups = given["rewards"].reshape(-1, int(given["attempts"]))
    advantages = np.concatenate([rloo_advantages(group) for group in groups])
    np.testing.assert_allclose(advantages, given["advantages"], atol=TOLERANCE)
    cap = float(given["constants"][3])
    weights = truncated_weight(given["old_logprob"], given["rollout_logprob"], cap) * given["mask"]
    np.testing.assert_allclose(weights, given["weights"], atol=TOLERANCE)
    for normalizer in ("token", "sequence"):
        loss, gradient = jax.value_and_grad(ours)(jnp.asarray(given["logits"]), given, normalizer)
        np.testing.assert_allclose(loss, given[f"loss_{normalizer}"], atol=TOLERANCE)
        np.testing.assert_allclose(gradient, given[f"gradient_{normalizer}"], atol=TOLERANCE)
        assert np.abs(given[f"gradient_{normalizer}"]).max() > 100 * TOLERANCE


def every_branch_occurs(given: Arrays) -> None:
    """The inputs reach both clips, the dual clip and the cap, and a group without contrast."""
    low, high, dual, cap = given["constants"]
    logprob = twin_logprobs(given)
    ratio, inside = np.exp(logprob - given["old_logprob"]), given["mask"] > 0
    advantage = np.broadcast_to(given["advantages"][:, None], ratio.shape)
    cases = [
        (ratio > 1 + high) & (advantage > 0), (ratio < 1 - low) & (advantage < 0), (ratio > dual) & (advantage < 0),
        np.exp(given["old_logprob"] - given["rollout_logprob"]) > cap, advantage == 0,
    ]  # fmt: skip
    assert all((case & inside).sum() >= 2 for case in cases)


def test_the_recorded_loss_of_tunix_is_ours() -> None:
    given = read(RECORDED)
    assert str(given["version"]) == "0.1.7"
    every_branch_occurs(given)
    compare(given)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_installed_tunix_gives_the_same_loss(seed: int, tmp_path: pathlib.Path) -> None:
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"python -m venv tunix && tunix/bin/pip install google-tunix==0.1.7; {PYTHON}=tunix/bin/python")
    out = tmp_path / "tunix.npz"
    done = subprocess.run([python, str(CHECK), str(out), str(seed)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    given = read(out)
    every_branch_occurs(given)
    compare(given)


def twin_logprobs(given: Arrays) -> np.ndarray:
    """log pi of the targets in float64."""
    slots = given["mask"].shape[1]
    logits = given["logits"][:, -slots - 1 : -1].astype(np.float64)
    normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(normal, given["targets"][..., None], -1)[..., 0]


def twin(given: Arrays, consistent: np.ndarray, episode: np.ndarray, normalizer: str) -> float:
    """Equations 6 and 7, token by token."""
    low, high, dual, cap = map(float, given["constants"])
    logprob, total, samples, tokens, episodes = twin_logprobs(given), 0.0, 0.0, 0.0, 0.0
    for s in range(len(logprob)):
        advantage = float(given["advantages"][s])
        length, of_episode = int(given["mask"][s].sum()), int(given["mask"][episode == episode[s]].sum())
        share = {"token": 1.0, "sequence": 1.0 / length, "episode": 1.0 / of_episode}[normalizer]
        for j in range(length):
            ratio = np.exp(logprob[s, j] - given["old_logprob"][s, j])
            weight = min(np.exp(given["old_logprob"][s, j] - given["rollout_logprob"][s, j]), cap)
            loss = max(-ratio * advantage, -min(max(ratio, 1 - low), 1 + high) * advantage)
            if advantage < 0:
                loss = min(loss, -dual * advantage)
            total += consistent[s] * share * weight * loss
        tokens += consistent[s] * length
        samples += consistent[s]
        episodes += consistent[s] * length / of_episode
    return total / {"token": tokens, "sequence": samples, "episode": episodes}[normalizer]


@pytest.mark.parametrize("normalizer", ["token", "sequence", "episode"])
def test_consistency_weights_and_episode_means_equal_the_literal_twin(normalizer: str) -> None:
    given = read(RECORDED)
    rows = len(given["mask"])
    consistent, episode = (np.arange(rows) % 5 != 0).astype(np.float32), np.arange(rows) // 2
    lengths = given["mask"].sum(-1)
    of_episode = np.array([lengths[episode == e].sum() for e in episode], np.float32)
    found = ours(jnp.asarray(given["logits"]), given, normalizer, consistent, of_episode)
    np.testing.assert_allclose(found, twin(given, consistent, episode, normalizer), atol=TOLERANCE)
