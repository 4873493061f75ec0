"""The episodes that ghosts replay: files of a store, or a few recorded once by the scripted expert."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np

from cel_jax.data.episode import Episode, EpisodeHeader, Features, Label, Source, features_from_dict
from cel_jax.data.episode_codec import decode_episode, encode_episode
from cel_jax.data.frame_log import Frame, frames_to_episode
from cel_jax.data.images import encode_jpeg
from cel_jax.robots.protocol import RobotError

SUFFIX = ".cel"
FEATURES_FILE = "features.json"
EACH = 3  # tapes that one ghost holds: 96 processes must fit in memory


def load_tapes(folder: Path, index: int, count: int = EACH) -> list[Episode]:
    """`count` of the episodes under a folder, others for another index. Raises RobotError where there are none."""
    paths = sorted(Path(folder).rglob(f"*{SUFFIX}"))
    if not paths:
        raise RobotError(f"ghost {index}: no *{SUFFIX} episodes under {folder}; give a run's experience folder")
    picked = {(index + k) % len(paths) for k in range(count)}
    return [decode_episode(paths[k].read_bytes()) for k in sorted(picked)]


def tape_features(folder: Path) -> Features:
    """What the recorded robot gave, from features.json in the folder or beside it (a run's folder)."""
    for place in (Path(folder), *Path(folder).parents[:3]):
        if (place / FEATURES_FILE).exists():
            return features_from_dict(json.loads((place / FEATURES_FILE).read_text()))
    raise RobotError(f"no {FEATURES_FILE} in {folder} or the folders above it; which robot recorded these episodes?")


def record_tapes(
    folder: Path, count: int, *, task: str, prompt: str, mode: str, image_px: int, max_episode_s: float,
    no_progress_s: float, image_stride_frames: int = 1,
) -> None:  # fmt: skip
    """Records `count` episodes of the expert on simulated robots, successes and failures, unless they are there."""
    from cel_jax.robots.tasks import make_expert, make_world

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(list(folder.glob(f"*{SUFFIX}"))), count):
        world = make_world(
            task, robot_seed=8000 + number, mode=mode, image_px=image_px, max_episode_s=max_episode_s,
            no_progress_s=no_progress_s,
        )  # fmt: skip
        world.reset(number)
        expert = make_expert(world, ("finn", "ada")[number % 2], number)
        frames: list[Frame] = []
        while (verdict := world.verdict()) is None:
            wanted = len(frames) % image_stride_frames == 0
            seen = world.observe(wanted)
            stage, executed = world.stage(), world.step(expert.act())
            images = {name: encode_jpeg(image) for name, image in seen.images.items()}
            frames.append(
                Frame(
                    len(frames), seen.state, np.asarray(executed, np.float32), images, seen.objects,
                    seen.capture_time_s, 0, int(Source.POLICY), False, stage,
                )
            )  # fmt: skip
        header = EpisodeHeader(
            f"tape-{number:03d}", "recorder", "recorder", world.calibration.robot_id, world.calibration.hash, task,
            prompt, world.features.fps_hz, time.time(),
        )  # fmt: skip
        label = Label(verdict.outcome, "simulator", time.time(), verdict.reason)
        _save(folder, frames_to_episode(header, label, frames), world.features)


def _save(folder: Path, episode: Episode, features: Features) -> None:
    (folder / FEATURES_FILE).write_text(json.dumps(dataclasses.asdict(features), indent=1))
    new = folder / f".{episode.header.id}.new"
    new.write_bytes(encode_episode(episode))
    os.replace(new, folder / f"{episode.header.id}{SUFFIX}")
