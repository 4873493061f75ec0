"""Records of experience: what a robot observes, what it did, and what the operator said.

Shape letters: T frames, S state numbers, A action numbers, O objects, P numbers per object pose.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np


class Outcome(str, enum.Enum):
    """What the operator says of an episode. A discard is neither a query nor a target."""

    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"


class Source(enum.IntEnum):
    """Who produced an action. FERT takes targets from POLICY frames alone."""

    POLICY = 0
    HUMAN = 1
    SCRIPT = 2


@dataclasses.dataclass(frozen=True)
class CameraSpec:
    """One camera as it is stored: `height` x `width` pixels, RGB."""

    name: str
    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Features:
    """What a robot provides and takes.

    `delta_mask[i]` says that action i is a joint target, which the policy predicts relative to the state at
    the chunk's start; False leaves it absolute (grippers). `objects_shape` is (O, P) in `state` mode.
    """

    robot_type: str
    state_dim: int
    action_dim: int
    cameras: tuple[CameraSpec, ...]
    objects_shape: tuple[int, int] | None
    fps_hz: float
    delta_mask: tuple[bool, ...]

    @property
    def camera_names(self) -> tuple[str, ...]:
        return tuple(camera.name for camera in self.cameras)


def features_from_dict(values: dict[str, Any]) -> Features:
    """The inverse of `dataclasses.asdict` on `Features`, from json."""
    objects = values["objects_shape"]
    return Features(
        **(
            values
            | {
                "cameras": tuple(CameraSpec(**camera) for camera in values["cameras"]),
                "objects_shape": None if objects is None else (int(objects[0]), int(objects[1])),
                "delta_mask": tuple(bool(on) for on in values["delta_mask"]),
            }
        )
    )


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the robot sees at one moment.

    images: camera name -> uint8 [height, width, 3], already cropped and resized; empty where not captured.
    state: float32 [S]. objects: float32 [O, P] or None. capture_time_s: seconds, the robot's clock.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    objects: np.ndarray | None
    capture_time_s: float


@dataclasses.dataclass(frozen=True)
class Label:
    """A typed, once-only statement about an episode."""

    outcome: Outcome
    author: str
    time_s: float
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class EpisodeHeader:
    """Whose episode it is. `id` is a key, never a row number."""

    id: str
    station: str
    worker: str
    robot_id: str
    calibration_hash: str
    task: str
    prompt: str
    fps_hz: float
    start_time_s: float


@dataclasses.dataclass(frozen=True)
class Episode:
    """One whole labelled episode of T frames.

    state: float32 [T, S]. action: float32 [T, A], what the robot really executed, as absolute targets.
    image_steps: int32 [V], the frames that carry images, rising. images: camera -> V JPEG byte strings.
    objects: float32 [T, O, P] or None. policy_version: int64 [T]. source: uint8 [T] (`Source`).
    intervened: bool [T]. stage: int16 [T], for analysis only, -1 where unknown; never shown to a policy.
    capture_time_s: float64 [T].
    """

    header: EpisodeHeader
    label: Label
    state: np.ndarray
    action: np.ndarray
    image_steps: np.ndarray
    images: Mapping[str, tuple[bytes, ...]]
    objects: np.ndarray | None
    policy_version: np.ndarray
    source: np.ndarray
    intervened: np.ndarray
    stage: np.ndarray
    capture_time_s: np.ndarray

    @property
    def num_frames(self) -> int:
        return len(self.state)

    @property
    def success(self) -> bool:
        return self.label.outcome is Outcome.SUCCESS

    def observed_steps(self) -> np.ndarray:
        """int32 [V]: frames at which the policy's whole input is on record (all of them in `state` mode)."""
        if self.images:
            return self.image_steps
        return np.arange(self.num_frames, dtype=np.int32)
