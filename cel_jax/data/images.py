"""Camera images: JPEG bytes, the paper's crops (Table 4), and resizing as openpi does it.

Shape letters: H height, W width, C = 3 channels. All images are uint8 RGB [.., H, W, C].
"""

from __future__ import annotations

import functools

import numpy as np
import simplejpeg

JPEG_QUALITY = 95
HEAD_PX = (400, 640)  # the paper's cameras, height x width
WRIST_PX = (1056, 1280)

Box = tuple[int, int, int, int]  # top, left, bottom, right in pixels

_WRIST_MID: Box = (100, 304, 772, 976)
# Paper Table 4: (head camera, both wrist cameras); None: no cropping.
CROP_BOXES: dict[str, tuple[Box | None, Box]] = {
    "flower_arrangement": ((120, 180, 330, 460), _WRIST_MID),
    "clothes_folding": ((120, 50, 400, 590), (200, 400, 856, 1056)),
    "phone_charging": ((140, 60, 400, 580), (300, 304, 748, 976)),
    "stool_assembly": ((130, 60, 350, 580), _WRIST_MID),
    "phone_packaging": (None, (192, 304, 864, 976)),
}


class DamagedImage(ValueError):
    """Bytes that are not a whole image; the message names episode, camera and step. episode: whose image it is."""

    def __init__(self, message: str, episode: str = "?") -> None:
        super().__init__(message)
        self.episode = episode


def crop_box(task: str, camera: str) -> Box | None:
    """The paper's crop of `camera` (a wrist camera has `wrist` in its name). Raises for an unknown task."""
    if task not in CROP_BOXES:
        raise ValueError(f"no crop boxes for task {task!r}; known are {sorted(CROP_BOXES)}")
    return CROP_BOXES[task][1 if "wrist" in camera else 0]


def encode_jpeg(image: np.ndarray, quality: int = JPEG_QUALITY) -> bytes:
    """uint8 [H, W, 3] -> JPEG bytes. Raises ValueError for another dtype or shape."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
        raise ValueError(f"encode_jpeg expects uint8 [H, W, 3], got {image.dtype} {image.shape}")
    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, colorspace="RGB")


def decode_jpeg(data: bytes, episode: str = "?", camera: str = "?", step: int = -1) -> np.ndarray:
    """JPEG bytes -> uint8 [H, W, 3]. Raises `DamagedImage` naming where the bytes came from."""
    try:
        return simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
    except ValueError as error:
        raise DamagedImage(
            f"episode {episode}, camera {camera}, step {step}: {len(data)} bytes are not a whole JPEG ({error}); "
            "restore the file from its source or leave the episode out",
            episode,
        ) from error


def crop(image: np.ndarray, box: Box | None) -> np.ndarray:
    """The box of [.., H, W, C]; None returns the image. Raises where the box leaves the image."""
    if box is None:
        return image
    top, left, bottom, right = box
    height, width = image.shape[-3:-1]
    if not (0 <= top < bottom <= height and 0 <= left < right <= width):
        raise ValueError(
            f"crop box {box} (top, left, bottom, right) leaves an image of {height}x{width}; the paper's boxes are for "
            f"{HEAD_PX[0]}x{HEAD_PX[1]} head and {WRIST_PX[0]}x{WRIST_PX[1]} wrist images"
        )
    return image[..., top:bottom, left:right, :]


def preprocess(image: np.ndarray, box: Box | None, image_px: int) -> np.ndarray:
    """Crop, squeeze to a square of the crop's shorter side, resize to `image_px`, no padding (paper, Table 4).

    The two resizings are linear, so that their weights are multiplied first and the pixels are touched once.
    """
    part = crop(image, box)
    height, width = part.shape[-3:-1]
    side = min(height, width)
    part = _apply(part, _weights(side, image_px) @ _weights(width, side), -2)
    return _apply(part, _weights(side, image_px) @ _weights(height, side), -3)


def fitted(image: np.ndarray, task: str, camera: str, image_px: int) -> np.ndarray:
    """[.., H, W, C] -> [.., image_px, image_px, C]: the paper's transformation for images of the paper's cameras at one
    of its tasks, else openpi's resize with black borders. Training and serving both call it."""
    paper_px = WRIST_PX if "wrist" in camera else HEAD_PX
    if task in CROP_BOXES and image.shape[-3:-1] == paper_px:
        return preprocess(image, crop_box(task, camera), image_px)
    return resize_with_pad(image, image_px, image_px)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """[.., H, W, C] -> [.., height, width, C]: bilinear, averaging over the source area where it shrinks (as PIL does).

    Width first, rounded to uint8 in between, so that results equal PIL's to two grey levels.
    """
    if image.dtype != np.uint8 or image.ndim < 3:
        raise ValueError(f"resize expects uint8 [.., H, W, C], got {image.dtype} {image.shape}")
    if image.shape[-2] != width:
        image = _apply(image, _weights(image.shape[-2], width), -2)
    if image.shape[-3] != height:
        image = _apply(image, _weights(image.shape[-3], height), -3)
    return image


def _apply(image: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    """Multiplies one axis of n pixels by weights [m, n] and rounds to uint8."""
    moved = np.moveaxis(image, axis, 0)
    flat = weights @ moved.reshape(len(moved), -1).astype(np.float32)
    out = np.floor(np.clip(flat, 0, 255) + 0.5).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(out.reshape(len(weights), *moved.shape[1:]), 0, axis))


@functools.lru_cache(maxsize=64)
def _weights(source: int, target: int) -> np.ndarray:
    """float32 [target, source]: a triangle filter, widened by the scale where it shrinks; rows sum to 1."""
    scale = source / target
    support = max(scale, 1.0)
    centres = (np.arange(target) + 0.5) * scale
    distance = np.abs(np.arange(source)[None] + 0.5 - centres[:, None]) / support
    weights = np.maximum(1 - distance, 0)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def resize_with_pad(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """openpi's host-side resize: keeps the aspect ratio, centred on black. [.., H, W, C] -> [.., height, width, C]."""
    source_height, source_width = image.shape[-3:-1]
    if (source_height, source_width) == (height, width):
        return image
    ratio = max(source_width / width, source_height / height)
    inner_height, inner_width = int(source_height / ratio), int(source_width / ratio)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    out = np.zeros((*image.shape[:-3], height, width, image.shape[-1]), np.uint8)
    out[..., top : top + inner_height, left : left + inner_width, :] = resize(image, inner_height, inner_width)
    return out
