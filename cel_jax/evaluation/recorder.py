"""Collects the frames of one simulated trial into an `Episode`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cel_jax.data.episode import Episode, EpisodeHeader, Label, Observation, Source


class Recorder:
    """Takes one observation and then one action for each frame, copying both (a robot may reuse its arrays)."""

    def __init__(self) -> None:
        self._observations: list[tuple[np.ndarray, np.ndarray | None, float, int]] = []
        self._actions: list[tuple[np.ndarray, int, Source]] = []
        self._image_steps: list[int] = []
        self._images: dict[str, list[bytes]] = {}

    def observed(self, observation: Observation, jpegs: Mapping[str, bytes], stage: int) -> None:
        """A frame's observation; jpegs: camera -> bytes, empty where no image was captured."""
        objects = None if observation.objects is None else np.array(observation.objects, np.float32)
        state = np.array(observation.state, np.float32)
        if jpegs:
            self._image_steps.append(len(self._observations))
        for camera, data in jpegs.items():
            self._images.setdefault(camera, []).append(data)
        self._observations.append((state, objects, observation.capture_time_s, stage))

    def acted(self, executed: np.ndarray, policy_version: int, source: Source) -> None:
        """What the frame's action really was."""
        self._actions.append((np.array(executed, np.float32), policy_version, source))

    def episode(self, header: EpisodeHeader, label: Label) -> Episode:
        """The whole episode. Raises ValueError where a frame lacks its action or a camera an image."""
        frames, counts = len(self._observations), {camera: len(images) for camera, images in self._images.items()}
        if frames != len(self._actions) or frames == 0 or set(counts.values()) - {len(self._image_steps)}:
            raise ValueError(
                f"episode {header.id}: {frames} observations, {len(self._actions)} actions, images {counts}"
            )
        states, objects, times, stages = zip(*self._observations, strict=True)
        actions, versions, sources = zip(*self._actions, strict=True)
        return Episode(
            header=header,
            label=label,
            state=np.stack(states),
            action=np.stack(actions),
            image_steps=np.array(self._image_steps, np.int32),
            images={camera: tuple(images) for camera, images in self._images.items()},
            objects=None if objects[0] is None else np.stack(objects),
            policy_version=np.array(versions, np.int64),
            source=np.array(sources, np.uint8),
            intervened=np.zeros(frames, bool),
            stage=np.array(stages, np.int16),
            capture_time_s=np.array(times, np.float64),
        )
