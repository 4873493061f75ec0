"""A small recorded run for the notebooks: a scripted operator packs phones in front of cameras, and once is stopped.

    folder = make_small_run("runs/notebook")           # about 15 s, nothing is trained

What comes out is a store's folder as a fleet leaves it: episodes and the numbered log. The stopped trial counts as the
failure, so the stage that it was in is known.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from cel_jax.config import TaskConfig
from cel_jax.data.episode import Episode, Features
from cel_jax.data.episode_codec import encode_episode
from cel_jax.evaluation.rollout import run_demonstrations
from cel_jax.evaluation.simulated import MakeSimulated, expert_driver, options_for
from cel_jax.evaluation.trials import Trial
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.replay.store_files import episode_filename

HORIZON, RHO, SUCCESSES, STOPPED_AT_FRAME = 30, 0.88, 4, 260
TASK = TaskConfig(image_px=64, max_episode_s=60.0, no_progress_s=6.0)


def make_small_run(folder: str | Path, successes: int = SUCCESSES) -> Path:
    """Records the run into `folder`, unless it is there; returns the folder."""
    target = Path(folder)
    if (target / "events.log").exists():
        return target
    store = open_store(target, MakeSimulated(TASK)(0).features)
    episodes = [record(Trial(i, i), f"success-{i}") for i in range(successes)]
    episodes.append(record(Trial(7, 7), "failure", STOPPED_AT_FRAME))
    for episode in episodes:
        deliver(store, target, episode)
    store.close()
    return target


def open_store(folder: Path, features: Features) -> ExperienceStore:
    config = StoreConfig(HORIZON, rho=RHO, shard_episodes=1000)
    return ExperienceStore(folder, MemoryTable(HORIZON), config, features)


def record(trial: Trial, name: str, max_steps: int = 100_000) -> Episode:
    """One trial of the operator; the frames count as a policy's, or else nothing could be replayed."""
    options = options_for(TASK, 15, record=True, processes=1, max_steps=max_steps, episode_prefix=name)
    (result,) = run_demonstrations(MakeSimulated(TASK), expert_driver, [trial], options)
    assert result.episode is not None
    return as_policys_own(result.episode)


def as_policys_own(episode: Episode) -> Episode:
    return dataclasses.replace(episode, source=np.zeros(episode.num_frames, np.uint8))


def deliver(store: ExperienceStore, folder: Path, episode: Episode) -> None:
    path = folder / "incoming" / episode_filename(episode.header.id)
    path.write_bytes(encode_episode(episode))
    store.accept(path)
