"""JPEG bytes to image arrays, on a few threads (the decoder releases the interpreter's lock)."""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cel_jax.data.images import DamagedImage, decode_jpeg


class Decoder:
    """Decodes lists of JPEG images. Images stay uint8: the accelerator turns them into numbers, at a quarter of the
    traffic."""

    def __init__(self, threads: int = 0):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1), "decode")

    def __call__(self, images: Mapping[str, Sequence[bytes]], keys: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
        """camera -> uint8 [n, h, w, 3]. keys: (episode, step) of each image, for the error message.

        Raises DamagedImage for bytes that are no image, or for an image of another size than the others.
        """
        return {camera: self._camera(camera, data, keys) for camera, data in images.items()}

    def _camera(self, camera: str, data: Sequence[bytes], keys: Sequence[tuple[str, int]]) -> np.ndarray:
        decoded: Iterable[np.ndarray] = self._pool.map(
            lambda item: decode_jpeg(item[0], item[1][0], camera, item[1][1]), zip(data, keys, strict=True)
        )
        frames = list(decoded)
        usual = collections.Counter(frame.shape for frame in frames).most_common(1)[0][0]
        for frame, (episode, step) in zip(frames, keys, strict=True):
            if frame.shape != usual:
                where = f"episode {episode}, camera {camera}, step {step}"
                raise DamagedImage(f"{where}: an image of {frame.shape}, expected {usual} as the others", episode)
        return np.stack(frames)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
