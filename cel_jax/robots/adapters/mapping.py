"""From the dictionaries of other projects to a policy's arrays: which entry is the state, which are the cameras.

Shape letters: S state numbers, O objects, P pose numbers, H height, W width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from cel_jax.data.episode import CameraSpec, Features, Observation
from cel_jax.data.images import fitted
from cel_jax.robots.protocol import RobotError


@dataclasses.dataclass(frozen=True)
class ObservationMap:
    """Where an observation dictionary holds what a policy sees; a key may be nested: `pixels.top`.

    state: entries that are joined to the state, in this order. cameras: the policy's name -> entry. objects: entry
    with object poses [O, P] (`state` mode), or empty. task: whose crops images get. image_px: side of the images.
    """

    state: tuple[str, ...]
    cameras: Mapping[str, str] = dataclasses.field(default_factory=dict)
    objects: str = ""
    task: str = ""
    image_px: int = 224

    def observation(
        self, values: Mapping[str, Any], robot: str, time_s: float, with_images: bool = True
    ) -> Observation:
        """The policy's view of one observation. Raises `RobotError` naming the robot and the entry."""
        images = {camera: self._image(values, camera, robot) for camera in (self.cameras if with_images else ())}
        objects = np.asarray(entry(values, self.objects, robot), np.float32) if self.objects else None
        return Observation(images, self.joined_state(values, robot), objects, time_s)

    def joined_state(self, values: Mapping[str, Any], robot: str) -> np.ndarray:
        """float32 [S]. Raises `RobotError` for a number that is not finite."""
        parts = [np.asarray(entry(values, key, robot), np.float32).reshape(-1) for key in self.state]
        state = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        if not np.isfinite(state).all():
            raise RobotError(
                f"robot {robot}: state numbers {np.flatnonzero(~np.isfinite(state)).tolist()} are not finite"
            )
        return state

    def features(
        self,
        values: Mapping[str, Any],
        robot: str,
        kind: str,
        action_dim: int,
        fps_hz: float,
        delta: tuple[bool, ...] = (),
    ) -> Features:
        """What the robot gives, measured on one observation. delta: joints among the actions; default: none."""
        seen = self.observation(values, robot, 0.0)
        cameras = tuple(CameraSpec(camera, *seen.images[camera].shape[:2]) for camera in self.cameras)
        objects = None if seen.objects is None else (seen.objects.shape[0], seen.objects.shape[1])
        return Features(kind, len(seen.state), action_dim, cameras, objects, fps_hz, delta or (False,) * action_dim)

    def _image(self, values: Mapping[str, Any], camera: str, robot: str) -> np.ndarray:
        key = self.cameras[camera]
        return fitted(
            as_rgb(entry(values, key, robot), f"robot {robot}, camera {camera}"), self.task, camera, self.image_px
        )


def entry(values: Mapping[str, Any], key: str, robot: str) -> Any:
    """values[key], or, for `a.b`, values["a"]["b"]. Raises `RobotError` with the entries that there are."""
    if key in values:
        return values[key]
    head, _, rest = key.partition(".")
    if rest and isinstance(values.get(head), Mapping):
        return entry(values[head], rest, robot)
    raise RobotError(f"robot {robot}: its observation has no {key!r}; it has {sorted(map(str, values))}")


def as_rgb(image: Any, whose: str) -> np.ndarray:
    """uint8 [H, W, 3] of an image with its channels first or last, uint8 or float in [0, 1]. Raises `RobotError`."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] == 3 and pixels.shape[-1] != 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise RobotError(f"{whose}: expected an RGB image [H, W, 3] or [3, H, W], got {pixels.dtype} {pixels.shape}")
    if np.issubdtype(pixels.dtype, np.floating):
        return _from_float(pixels, whose)
    if pixels.dtype != np.uint8:
        raise RobotError(f"{whose}: expected uint8 pixels, or floats from 0 to 1, got {pixels.dtype}")
    return np.ascontiguousarray(pixels)


def _from_float(pixels: np.ndarray, whose: str) -> np.ndarray:
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0.0 and high <= 1.0):
        raise RobotError(f"{whose}: float pixels must lie in [0, 1], got {low:g} to {high:g}; give uint8 otherwise")
    return np.ascontiguousarray(np.round(pixels * 255).astype(np.uint8))
