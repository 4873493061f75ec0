"""Messages between the rollout's processes: a JSON header and raw arrays in one buffer.

message = header length (4 bytes, little-endian), header, arrays one after the other.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from cel_jax.data.episode import Episode, EpisodeHeader, Label, Outcome
from cel_jax.evaluation.trials import Trial, TrialResult

_ARRAYS = ("state", "action", "image_steps", "policy_version", "source", "intervened", "stage", "capture_time_s")


def pack(header: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> bytes:
    """One message. The arrays' dtypes and shapes go into the header."""
    arrays = [np.asarray(array) for array in arrays]
    layout = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = json.dumps({**header, "arrays": layout}).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(array.tobytes() for array in arrays)])


def unpack(message: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The inverse of `pack`; the arrays are read-only views of the message."""
    (size,) = struct.unpack_from("<I", message)
    header = json.loads(message[4 : 4 + size])
    at, arrays = 4 + size, []
    for dtype, shape in header.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(message, dtype, count, at).reshape(shape))
        at += arrays[-1].nbytes
    return header, arrays


def pack_result(result: TrialResult) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A result as header and arrays, its episode with it."""
    header = {
        "trial": dataclasses.asdict(result.trial),
        "robot_id": result.robot_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "steps": result.steps,
        "stage": result.stage,
        "has_mask": result.loss_mask is not None,
    }
    arrays = [] if result.loss_mask is None else [result.loss_mask]
    if result.episode is not None:
        header["episode"], more = _pack_episode(result.episode)
        arrays += more
    return header, arrays


def unpack_result(header: dict[str, Any], arrays: Sequence[np.ndarray]) -> TrialResult:
    """The inverse of `pack_result`; arrays are copied, so that nothing keeps the message alive."""
    rest = [array.copy() for array in arrays]
    mask = rest.pop(0) if header["has_mask"] else None
    return TrialResult(
        Trial(**header["trial"]),
        header["robot_id"],
        Outcome(header["outcome"]),
        header["reason"],
        header["steps"],
        header["stage"],
        _unpack_episode(header["episode"], rest) if "episode" in header else None,
        mask,
    )


def _pack_episode(episode: Episode) -> tuple[dict[str, Any], list[np.ndarray]]:
    sizes = {camera: [len(data) for data in images] for camera, images in episode.images.items()}
    label = dataclasses.asdict(episode.label) | {"outcome": episode.label.outcome.value}
    header = {"header": dataclasses.asdict(episode.header), "label": label, "sizes": sizes}
    arrays = [getattr(episode, name) for name in _ARRAYS]
    arrays += [np.frombuffer(b"".join(images), np.uint8) for images in episode.images.values()]
    return header, arrays + ([] if episode.objects is None else [episode.objects])


def _unpack_episode(header: dict[str, Any], arrays: list[np.ndarray]) -> Episode:
    fields = dict(zip(_ARRAYS, arrays, strict=False))
    rest = arrays[len(_ARRAYS) :]
    images = {
        camera: _split(data.tobytes(), sizes)
        for (camera, sizes), data in zip(header["sizes"].items(), rest, strict=False)
    }
    objects = rest[len(images)] if len(rest) > len(images) else None
    label = Label(**(header["label"] | {"outcome": Outcome(header["label"]["outcome"])}))
    return Episode(header=EpisodeHeader(**header["header"]), label=label, images=images, objects=objects, **fields)


def _split(data: bytes, sizes: list[int]) -> tuple[bytes, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(data[end - size : end] for end, size in zip(ends, sizes, strict=True))
