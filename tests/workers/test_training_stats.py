"""Statistics travel with the checkpoint; others than the start policy's end the resume by name."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cel_jax.data import normalize
from cel_jax.fert.manifest import CheckpointMismatch
from cel_jax.workers.training import check_same_stats
from tests.models.robots import features, norm_stats


def test_a_checkpoint_of_other_statistics_is_refused() -> None:
    stats = norm_stats(features("state"))
    stored = json.loads(json.dumps(normalize.to_dict(stats)))
    check_same_stats(stored, stats, "checkpoint 4")
    other = dataclasses.replace(stats, state_std=stats.state_std * 1.000001, action_mean=stats.action_mean + 1)
    with pytest.raises(CheckpointMismatch, match="checkpoint 4 was trained with other state_std, action_mean than"):
        check_same_stats(stored, other, "checkpoint 4")
