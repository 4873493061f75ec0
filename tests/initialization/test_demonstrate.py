"""Demonstrations by the scripted expert: which ones are kept."""

import dataclasses

import pytest

from cel_jax.config import InitConfig, TaskConfig
from cel_jax.initialization.demonstrate import collect

TASK = TaskConfig(mode="state", image_stride_frames=1, max_episode_s=1.5)  # too short for anybody to succeed
INIT = InitConfig(operators="gus", num_demos=1, demo_robots=1)


def test_a_failed_demonstration_is_left_out() -> None:
    with pytest.raises(RuntimeError, match="0 of 5 demonstrations succeeded"):
        list(collect(TASK, INIT, processes=1))


def test_unlabelled_demonstrations_are_kept_whatever_their_outcome() -> None:
    kept = list(collect(TASK, dataclasses.replace(INIT, keep_failures=True), processes=1))
    assert len(kept) == 1 and 40 <= len(kept[0].action) <= 46 and kept[0].taught.all()
