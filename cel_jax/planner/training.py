"""Training steps of both stages on the policy's mesh: the losses of `losses` behind the shared trainer.

Shape letters: B samples, P prompt slots, R response slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.config import TrainConfig
from cel_jax.fert import sharding, trainer
from cel_jax.planner import decoder
from cel_jax.planner.batches import Batch, padded_rows
from cel_jax.planner.config import RlConfig, SftConfig
from cel_jax.planner.decoder import DecoderConfig, Params
from cel_jax.planner.losses import PpoParams, masked_mean, rl_token_loss, sample_weights, token_logprobs

SCORE_ROWS, SCORE_LOGITS = 128, 2**26  # most samples at once, and most logits (256 MB)


def response_logprobs(params: Params, config: DecoderConfig, dtype: str, batch: Any, remat: bool = False) -> jax.Array:
    """float32 [B, R] by the training backend."""
    prompt = batch["tokens"].shape[1] - batch["targets"].shape[1]
    logits = decoder.response_logits(params, config, dtype, batch["tokens"], batch["valid"], prompt, remat)
    return token_logprobs(logits, batch["targets"])


def sft_loss(config: DecoderConfig, dtype: str, remat: bool = False) -> trainer.LossFn:
    """Mean negative log-likelihood of response tokens; `weight` makes it the mean over tokens."""

    def loss(params: Params, batch: Any, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
        per_sample = masked_mean(-response_logprobs(params, config, dtype, batch, remat), batch["mask"])
        return per_sample.mean(), per_sample

    return loss


def rl_loss(config: DecoderConfig, dtype: str, ppo: PpoParams, remat: bool = False) -> trainer.LossFn:
    """Equation 7 with Z by the weights of `sample_weights`."""

    def loss(params: Params, batch: Any, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
        logprob = response_logprobs(params, config, dtype, batch, remat)
        tokens = rl_token_loss(logprob, batch["train_logprob"], batch["rollout_logprob"], batch["advantage"], ppo)
        per_sample = masked_mean(tokens, batch["mask"])
        return per_sample.mean(), per_sample

    return loss


def sft_train_config(config: SftConfig, seed: int) -> TrainConfig:
    """Warm-up, then cosine to 0."""
    return TrainConfig(
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        peak_lr=config.peak_lr,
        warmup_steps=min(config.warmup_steps, config.steps // 2),
        decay_steps=config.steps,
        floor_lr_fraction=0.0,
        weight_decay=0.0,
        clip_norm=config.clip_norm,
        seed=seed,
    )


def rl_train_config(config: RlConfig, seed: int) -> TrainConfig:
    """A constant rate: rounds may be added to a run."""
    return TrainConfig(
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        peak_lr=config.peak_lr,
        warmup_steps=0,
        decay_steps=1,
        floor_lr_fraction=1.0,
        weight_decay=0.0,
        clip_norm=config.clip_norm,
        seed=seed,
    )


class Scorer:
    """Log-probabilities of many samples under fixed weights, by the training backend."""

    def __init__(self, config: DecoderConfig, dtype: str, mesh: Mesh) -> None:
        self._mesh, self._vocab_size = mesh, config.vocab_size
        self._score = jax.jit(lambda params, batch: response_logprobs(params, config, dtype, batch))

    def __call__(self, params: Params, batch: Batch) -> np.ndarray:
        """float32 [B, R], in pieces of equal shape."""
        needed = {name: batch[name] for name in ("tokens", "valid", "targets", "mask")}
        found, size = [], self._rows(batch["targets"].shape[1])
        for start in range(0, len(batch["tokens"]), size):
            rows = np.arange(start, min(start + size, len(batch["tokens"])))
            part = sharding.put_batch(padded_rows(needed, rows, size), self._mesh)
            found.append(np.asarray(self._score(params, part))[: len(rows)])
        return np.concatenate(found)

    def _rows(self, response_slots: int) -> int:
        """Samples of a piece: a multiple of the devices, fewer where the vocabulary is large."""
        fitting = SCORE_LOGITS // (response_slots * self._vocab_size)
        return max(1, min(SCORE_ROWS, fitting) // self._mesh.size) * self._mesh.size


def sft_weight(batch: Batch) -> np.ndarray:
    """float32 [B]: tokens of a response, so that the loss is a mean over tokens."""
    return np.asarray(batch["mask"].sum(-1), np.float32)


def rl_weight(batch: Batch, normalizer: str) -> np.ndarray:
    """float32 [B]; see `losses.sample_weights`."""
    mask, consistent, episode_tokens = (jnp.asarray(batch[name]) for name in ("mask", "consistent", "episode_tokens"))
    return np.asarray(sample_weights(mask, consistent, episode_tokens, normalizer))


def batch_order(samples: int, batch_size: int, steps: int, seed: int) -> list[np.ndarray]:
    """`steps` batches of rows: every epoch in an order of its own. Raises ValueError without samples."""
    if samples == 0:
        raise ValueError("there is nothing to train on: no sample")
    rng, rows = np.random.default_rng([41, seed]), np.empty(0, np.int64)
    order: list[np.ndarray] = []
    while len(order) < steps:
        while len(rows) < batch_size:
            rows = np.concatenate([rows, rng.permutation(samples)])
        order.append(rows[:batch_size])
        rows = rows[batch_size:]
    return order


def one_pass(samples: int, batch_size: int, seed: int) -> list[np.ndarray]:
    """Every sample once, in a random order; the last batch may be short."""
    rows = np.random.default_rng([43, seed]).permutation(samples)
    return [rows[start : start + batch_size] for start in range(0, samples, batch_size)]


Say = Callable[[str], None]
