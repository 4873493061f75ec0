"""Samples to arrays of fixed shapes. Shape letters: B samples, P slots of prompt, R of response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cel_jax.planner.sampler import pad_left
from cel_jax.planner.samples import Sample

Batch = dict[str, np.ndarray]


def make_batch(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], prompt_limit: int, response_slots: int
) -> Batch:
    """tokens int32, valid bool [B, P + R]; targets int32, mask float32 [B, R]. mask is 1 on response tokens only.

    Raises ValueError for a response that does not fit R.
    """
    left, left_valid = pad_left(prompts, prompt_limit)
    targets = np.zeros((len(responses), response_slots), np.int32)
    mask = np.zeros((len(responses), response_slots), np.float32)
    for row, response in enumerate(responses):
        if len(response) > response_slots:
            raise ValueError(f"response {row} has {len(response)} tokens; {response_slots} fit: raise the limit")
        targets[row, : len(response)] = response
        mask[row, : len(response)] = 1.0
    tokens = np.concatenate([left, targets], axis=1)
    valid = np.concatenate([left_valid, mask > 0], axis=1)
    return {"tokens": tokens, "valid": valid, "targets": targets, "mask": mask}


def rl_batch(samples: Sequence[Sample], prompt_limit: int, response_slots: int) -> Batch:
    """`make_batch` with rollout_logprob [B, R], and advantage, consistent, episode_tokens float32 [B]."""
    batch = make_batch([s.prompt_ids for s in samples], [s.response_ids for s in samples], prompt_limit, response_slots)
    logprobs = np.zeros_like(batch["mask"])
    for row, sample in enumerate(samples):
        logprobs[row, : len(sample.logprobs)] = sample.logprobs
    tokens: Counter[str] = Counter()
    for sample in samples:
        tokens[sample.episode] += len(sample.response_ids)
    return batch | {
        "rollout_logprob": logprobs,
        "advantage": np.array([s.advantage for s in samples], np.float32),
        "consistent": np.array([s.consistent for s in samples], np.float32),
        "episode_tokens": np.array([tokens[s.episode] for s in samples], np.float32),
    }


def rows_of(batch: Batch, rows: np.ndarray) -> Batch:
    """Some samples of a batch."""
    return {name: values[rows] for name, values in batch.items()}


def padded_rows(batch: Batch, rows: np.ndarray, size: int) -> Batch:
    """`size` samples: the given rows, then copies of the first whose mask is 0, so that they weigh nothing."""
    fill = np.full(size - len(rows), rows[0])
    part = rows_of(batch, np.concatenate([rows, fill]))
    part["mask"] = part["mask"].copy()
    part["mask"][len(rows) :] = 0.0
    return part
