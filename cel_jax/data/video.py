"""Frames from video files, through PyAV (imported where it is needed)."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(f"reading video needs PyAV (pip install 'cel-jax[train]'): {error}") from error
    return av


def read_frames(
    path: pathlib.Path, count: int, stride_frames: int = 1, start_s: float = 0.0, fps_hz: float = 0.0
) -> Iterator[np.ndarray]:
    """Yields uint8 [h, w, 3] RGB of frames 0, stride, 2*stride, .. among `count` frames from `start_s` on.

    start_s: where the episode begins in a file of several (fps_hz is then needed to tell frames apart).
    Raises ValueError naming the file where it cannot be decoded or holds fewer frames.
    """
    av, seen = _av(), 0
    try:
        with av.open(str(path)) as container:
            for frame in _frames_from(container, start_s, fps_hz):
                if seen == count:
                    return
                if seen % stride_frames == 0:
                    yield frame.to_ndarray(format="rgb24")
                seen += 1
    except av.FFmpegError as error:
        raise ValueError(f"{path}: damaged or partial video after {seen} of {count} frames: {error}") from error
    if seen < count:
        raise ValueError(f"{path}: {seen} frames from {start_s:.3f} s on, {count} expected; copy the file again")


def _frames_from(container: Any, start_s: float, fps_hz: float) -> Iterator[Any]:
    if not container.streams.video:
        raise ValueError(f"{container.name}: holds no video; the file is damaged or partial")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    if start_s > 0:
        container.seek(int(start_s / stream.time_base), stream=stream)
    earliest_s = start_s - 0.5 / fps_hz if start_s > 0 else -np.inf
    return (frame for frame in container.decode(stream) if frame.time >= earliest_s)


def decode_still(data: bytes) -> np.ndarray:
    """PNG or another still image -> uint8 [h, w, 3]. Raises ValueError."""
    av = _av()
    try:
        with av.open(io.BytesIO(data)) as container:
            return next(container.decode(video=0)).to_ndarray(format="rgb24")
    except (av.FFmpegError, StopIteration, IndexError) as error:
        raise ValueError(f"{len(data)} bytes are not a readable image: {error}") from error
