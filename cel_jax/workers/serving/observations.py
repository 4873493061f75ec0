"""Observations of openpi's robots as the policy takes them. Shape letters: S state numbers, h w pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from cel_jax.data.episode import CameraSpec, Features
from cel_jax.data.images import fitted, resize_with_pad

BASE, LEFT, RIGHT = "base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"


class ObservationError(ValueError):
    """An observation that does not fit the robot; the message names the key."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a robot's observation keeps things.

    cameras: the network's camera -> key; a camera without a key is absent (black and masked). state: keys that are
    joined. delta_mask: actions relative to the state. task: whose crops the paper's cameras get.
    """

    cameras: Mapping[str, str]
    state: tuple[str, ...]
    state_dim: int
    action_dim: int
    delta_mask: tuple[bool, ...]
    task: str = ""


@dataclasses.dataclass(frozen=True)
class Request:
    """state: f32 [S]. images: camera -> uint8 [h, w, 3]. present: camera -> whether it was sent."""

    state: np.ndarray
    images: Mapping[str, np.ndarray]
    present: Mapping[str, bool]
    objects: np.ndarray | None
    prompt: str


def _arms(*counts: int) -> tuple[bool, ...]:
    """Positive: so many joints; negative: so many that stay absolute."""
    return tuple(count > 0 for count in counts for _ in range(abs(count)))


LAYOUTS = {
    "libero": Layout(
        {BASE: "observation/image", LEFT: "observation/wrist_image", RIGHT: ""},
        ("observation/state",),
        8,
        7,
        _arms(6, -1),
    ),
    "droid": Layout(
        {BASE: "observation/exterior_image_1_left", LEFT: "observation/wrist_image_left", RIGHT: ""},
        ("observation/joint_position", "observation/gripper_position"),
        8,
        8,
        _arms(7, -1),
    ),
    "aloha": Layout(
        {BASE: "images/cam_high", LEFT: "images/cam_left_wrist", RIGHT: "images/cam_right_wrist"},
        ("state",),
        14,
        14,
        _arms(6, -1, 6, -1),
    ),
}


def robot_features(robot: str, image_px: int) -> Features:
    """Features of one of openpi's robots. Raises ObservationError for an unknown one."""
    layout = LAYOUTS.get(robot)
    if layout is None:
        raise ObservationError(f"robot {robot!r}: expected one of {sorted(LAYOUTS)}")
    cameras = tuple(CameraSpec(name, image_px, image_px) for name in layout.cameras)
    return Features(robot, layout.state_dim, layout.action_dim, cameras, None, 30.0, layout.delta_mask)


def default_layout(features: Features) -> Layout:
    """A robot of our own: `observation/state`, `observation/<camera>`, `observation/objects`."""
    cameras = {name: f"observation/{name}" for name in features.camera_names}
    return Layout(cameras, ("observation/state",), features.state_dim, features.action_dim, features.delta_mask)


def read(message: Any, layout: Layout, features: Features, default_prompt: str) -> Request:
    """Raises ObservationError naming a key that is missing or does not fit."""
    if not isinstance(message, dict):
        raise ObservationError(f"expected a dictionary of observations, got {type(message).__name__}")
    if "objects" not in message and features.objects_shape is not None and "observation/objects" not in message:
        raise ObservationError(f"observation/objects is missing; the policy reads poses {features.objects_shape}")
    images = {name: _image(message, layout, name, features) for name in features.camera_names}
    return Request(
        state=_state(message, layout),
        images={name: image for name, (image, _) in images.items()},
        present={name: there for name, (_, there) in images.items()},
        objects=_objects(message, features),
        prompt=_prompt(message, default_prompt),
    )


def _prompt(message: Mapping[str, Any], default: str) -> str:
    prompt = message.get("prompt", default)
    if not isinstance(prompt, str):
        raise ObservationError(f"prompt: expected text, got {type(prompt).__name__}")
    return prompt


def _find(message: Mapping[str, Any], key: str) -> Any:
    """A flat key, or one level of nesting (`images/cam_high`); None where absent."""
    if key in message:
        return message[key]
    head, _, tail = key.partition("/")
    inner = message.get(head)
    return inner.get(tail) if isinstance(inner, dict) else None


def _state(message: Mapping[str, Any], layout: Layout) -> np.ndarray:
    parts = []
    for key in layout.state:
        value = _find(message, key)
        if value is None:
            raise ObservationError(f"{key} is missing; there are {sorted(map(str, message))}")
        parts.append(np.atleast_1d(np.asarray(value, np.float32)).reshape(-1))
    state = np.concatenate(parts)
    if state.shape != (layout.state_dim,) or not np.isfinite(state).all():
        raise ObservationError(f"{layout.state}: expected {layout.state_dim} finite numbers, got {state.tolist()}")
    return state


def _image(message: Mapping[str, Any], layout: Layout, name: str, features: Features) -> tuple[np.ndarray, bool]:
    key = layout.cameras.get(name, "")
    spec = next(camera for camera in features.cameras if camera.name == name)
    if not key:
        return np.zeros((spec.height, spec.width, 3), np.uint8), False
    image = _find(message, key)
    if image is None:
        raise ObservationError(f"{key} is missing; there are {sorted(map(str, message))}")
    return _fitted(np.asarray(image), key, spec, layout.task), True


def _fitted(image: np.ndarray, key: str, spec: CameraSpec, task: str) -> np.ndarray:
    """uint8 [h, w, 3] of the camera's size; floats are taken as 0..1 and CHW is turned, as openpi does."""
    if image.ndim != 3 or 3 not in (image.shape[0], image.shape[2]):
        raise ObservationError(f"{key}: expected an image [h, w, 3] or [3, h, w], got {image.dtype} {image.shape}")
    if image.dtype.kind == "f":
        if not np.isfinite(image).all() or image.min() < 0 or image.max() > 1:
            raise ObservationError(f"{key}: a float image must lie in 0..1; send uint8")
        image = (255 * image).astype(np.uint8)
    if image.dtype != np.uint8:
        raise ObservationError(f"{key}: expected uint8 or floats in 0..1, got {image.dtype}")
    if image.shape[2] != 3:
        image = image.transpose(1, 2, 0)
    if image.shape[:2] == (spec.height, spec.width):
        return image
    square = spec.height == spec.width
    return fitted(image, task, spec.name, spec.width) if square else resize_with_pad(image, spec.height, spec.width)


def _objects(message: Mapping[str, Any], features: Features) -> np.ndarray | None:
    if features.objects_shape is None:
        return None
    objects = np.asarray(message.get("observation/objects", message.get("objects")), np.float32)
    if objects.shape != features.objects_shape or not np.isfinite(objects).all():
        raise ObservationError(f"observation/objects: expected finite {features.objects_shape}, got {objects.shape}")
    return objects
