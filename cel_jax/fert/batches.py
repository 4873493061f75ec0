"""Sampled chunks to training batches: images decoded, states and actions normalised, joint targets made relative.

Shape letters: B samples, S state numbers, O objects, P pose numbers, L prompt tokens, H horizon, A action numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cel_jax.data import actions as action_space
from cel_jax.data import normalize
from cel_jax.data.normalize import NormStats
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.interfaces import Chunks


class BatchMaker:
    """Turns `Chunks` into the dictionary that `policy_loss` reads.

    delta_mask: which actions are joint targets, predicted relative to the chunk's first state.
    tokens, token_mask: int32 [L], bool [L]: the run's one prompt.
    """

    def __init__(
        self,
        stats: NormStats,
        delta_mask: Sequence[bool],
        tokens: np.ndarray,
        token_mask: np.ndarray,
        decoder: Decoder,
    ):
        self._stats = stats
        self._delta_mask = tuple(delta_mask)
        self._prompt = {"tokens": np.asarray(tokens, np.int32), "token_mask": np.asarray(token_mask, bool)}
        self._decode = decoder

    def __call__(self, chunks: Chunks) -> dict[str, Any]:
        """images: camera -> uint8 [B, h, w, 3]; objects: float32 [B, O, P] (absent without poses);
        tokens: int32 [B, L]; token_mask: bool [B, L]; state: float32 [B, S]; actions: float32 [B, H, A];
        action_mask: bool [B, H].
        """
        size = len(chunks.state)
        batch: dict[str, Any] = {"images": self._decode(chunks.images, chunks.keys)}
        batch |= {name: np.repeat(row[None], size, axis=0) for name, row in self._prompt.items()}
        batch |= self._numbers(chunks)
        return batch

    def _numbers(self, chunks: Chunks) -> dict[str, np.ndarray]:
        stats, mask = self._stats, np.asarray(chunks.action_mask, bool)
        deltas = action_space.to_delta(chunks.actions, chunks.state, self._delta_mask)
        deltas = normalize.normalize(deltas, stats.action_mean, stats.action_std)
        numbers = {
            "state": normalize.normalize(chunks.state, stats.state_mean, stats.state_std),
            "actions": np.where(mask[..., None], deltas, 0.0),  # padding carries no loss; keep it finite
            "action_mask": mask,
        }
        if chunks.objects is not None:
            numbers["objects"] = normalize.normalize(chunks.objects, stats.objects_mean, stats.objects_std)
        return {name: rows if rows.dtype == bool else rows.astype(np.float32) for name, rows in numbers.items()}


def policy_loss(
    flow_loss: Callable[..., tuple[jax.Array, jax.Array]], model_inputs: Callable[..., Any], model_config: Any
) -> Callable[[Any, dict[str, Any], jax.Array], tuple[jax.Array, jax.Array]]:
    """The trainer's loss from the model's `flow_loss(params, config, inputs, actions, action_mask, rng)`."""

    def loss(params: Any, batch: dict[str, Any], rng: jax.Array) -> tuple[jax.Array, jax.Array]:
        fields = {name: batch[name] for name in ("images", "tokens", "token_mask", "state")}
        inputs = model_inputs(image_masks={}, objects=batch.get("objects"), **fields)
        return flow_loss(params, model_config, inputs, batch["actions"], batch["action_mask"], rng)

    return loss
