"""Schema checks of episodes and frames, made at the robot before the wire and again at the store.

Shape letters: T frames, V frames with images, S state numbers, A action numbers, O objects, P numbers per pose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import simplejpeg

from cel_jax.data.episode import Episode, EpisodeHeader, Features

PER_FRAME_DTYPES: dict[str, np.dtype] = {
    "state": np.dtype(np.float32),
    "action": np.dtype(np.float32),
    "policy_version": np.dtype(np.int64),
    "source": np.dtype(np.uint8),
    "intervened": np.dtype(np.bool_),
    "stage": np.dtype(np.int16),
    "capture_time_s": np.dtype(np.float64),
}


class EpisodeError(ValueError):
    """An episode that is not what it should be. The message names station, episode and leaf."""


def describe(header: EpisodeHeader) -> str:
    """How messages name an episode."""
    return f"station {header.station!r}, episode {header.id!r}"


def check_episode(episode: Episode) -> None:
    """Raises `EpisodeError` where the arrays of an episode do not fit each other or have a wrong dtype."""
    who, num_frames = describe(episode.header), episode.num_frames
    if num_frames == 0:
        raise EpisodeError(f"{who}: no frames; an empty episode is a discard and must not be sent")
    for leaf, dtype in PER_FRAME_DTYPES.items():
        _check_leaf(who, leaf, getattr(episode, leaf), dtype, num_frames)
    if episode.objects is not None:
        _check_leaf(who, "objects", episode.objects, np.dtype(np.float32), num_frames)
    _check_image_steps(who, episode)


def _check_leaf(who: str, leaf: str, array: np.ndarray, dtype: np.dtype, num_frames: int) -> None:
    if array.dtype != dtype or len(array) != num_frames:
        raise EpisodeError(
            f"{who}, leaf {leaf!r}: expected {dtype} of {num_frames} frames, got {array.dtype} of shape {array.shape}"
        )


def _check_image_steps(who: str, episode: Episode) -> None:
    steps = episode.image_steps
    if steps.dtype != np.int32 or steps.ndim != 1:
        raise EpisodeError(f"{who}, leaf 'image_steps': expected int32 [V], got {steps.dtype} {steps.shape}")
    if len(steps) and (steps[0] < 0 or steps[-1] >= episode.num_frames or np.any(np.diff(steps) <= 0)):
        raise EpisodeError(f"{who}, leaf 'image_steps': must rise within [0, {episode.num_frames}), got {steps}")
    if len(steps) and not episode.images:
        raise EpisodeError(f"{who}, leaf 'image_steps': {len(steps)} captured frames, but no camera")
    for camera, images in episode.images.items():
        if len(images) != len(steps):
            raise EpisodeError(f"{who}, camera {camera!r}: {len(images)} images for {len(steps)} captured frames")


def check_features(episode: Episode, features: Features) -> None:
    """Raises `EpisodeError` where an episode does not carry what its robot type promises."""
    check_episode(episode)
    who = describe(episode.header)
    _check_width(who, "state", episode.state, (features.state_dim,))
    _check_width(who, "action", episode.action, (features.action_dim,))
    _check_objects(who, episode.objects, features)
    _check_camera_set(who, episode.images, features)
    if features.cameras and len(episode.image_steps) == 0:
        raise EpisodeError(f"{who}: no frame carries images, but cameras {list(features.camera_names)} are promised")
    for camera, images in episode.images.items():
        check_jpegs(who, camera, images, features)


def _check_width(who: str, leaf: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape[1:] != shape:
        raise EpisodeError(f"{who}, leaf {leaf!r}: expected {shape} numbers a frame, got {array.shape[1:]}")
    bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
    if len(bad):
        raise EpisodeError(f"{who}, leaf {leaf!r}: not finite at frame {bad[0]} ({len(bad)} frames in all)")


def _check_objects(who: str, objects: np.ndarray | None, features: Features) -> None:
    if (objects is None) != (features.objects_shape is None):
        got = None if objects is None else objects.shape
        raise EpisodeError(f"{who}, leaf 'objects': expected {features.objects_shape} a frame, got {got}")
    if objects is not None and features.objects_shape is not None:
        _check_width(who, "objects", objects, features.objects_shape)


def _check_camera_set(who: str, images: Mapping[str, object], features: Features) -> None:
    missing = sorted(set(features.camera_names) - set(images))
    unknown = sorted(set(images) - set(features.camera_names))
    if missing:
        raise EpisodeError(f"{who}: camera {missing[0]!r} is missing (in all: {missing}); check its cable and driver")
    if unknown:
        raise EpisodeError(f"{who}: camera {unknown[0]!r} is not among {list(features.camera_names)}")


def check_jpegs(who: str, camera: str, images: Iterable[bytes], features: Features) -> None:
    """Raises `EpisodeError` where a JPEG of `camera` is broken or has a wrong size. Reads the headers alone."""
    spec = next(spec for spec in features.cameras if spec.name == camera)
    for row, image in enumerate(images):
        try:
            height, width = simplejpeg.decode_jpeg_header(image)[:2]
        except ValueError as error:
            raise EpisodeError(
                f"{who}, camera {camera!r}: captured image {row} is not a JPEG ({len(image)} bytes): {error}"
            ) from error
        if (height, width) != (spec.height, spec.width):
            raise EpisodeError(
                f"{who}, camera {camera!r}: captured image {row} is {height} x {width}, "
                f"expected {spec.height} x {spec.width}"
            )


def check_frame_images(header: EpisodeHeader, images: Mapping[str, bytes], features: Features) -> None:
    """The check of one captured frame, before it is recorded; frames without images pass."""
    if not images:
        return
    who = describe(header)
    _check_camera_set(who, images, features)
    for camera, image in images.items():
        check_jpegs(who, camera, (image,), features)
