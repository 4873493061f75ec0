"""A whole labelled episode as bytes: a msgpack header, raw buffers, and a SHA-256 over everything.

    data = encode_episode(episode)
    episode = decode_episode(data)       # raises EpisodeError naming the episode and the leaf

Layout: magic (4 bytes), version uint16, header length uint32, header CRC-32 uint32 (little endian), header, buffers in
the header's order, SHA-256 (32 bytes). The streaming form of a running episode is in `frame_log`, named here as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from cel_jax.data.episode import Episode, EpisodeHeader, Label, Outcome
from cel_jax.data.episode_check import PER_FRAME_DTYPES, EpisodeError, check_episode, check_features
from cel_jax.data.frame_log import Frame, FrameLog, FrameLogContents, frames_to_episode, read_frame_log

__all__ = [
    "EpisodeError",
    "Frame",
    "FrameLog",
    "FrameLogContents",
    "check_episode",
    "check_features",
    "content_hash",
    "decode_episode",
    "encode_episode",
    "frames_to_episode",
    "read_frame_log",
]

MAGIC = b"CELE"
VERSION = 1
_PREFIX = struct.Struct("<4sHII")
_DIGEST_BYTES = 32
_ARRAYS = (*PER_FRAME_DTYPES, "image_steps")


def encode_episode(episode: Episode) -> bytes:
    """The bytes of an episode; equal episodes give equal bytes."""
    check_episode(episode)
    leaves, buffers = [], []
    for name, array in _arrays(episode):
        buffers.append(array.tobytes())
        leaves.append(
            {"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "crc": zlib.crc32(buffers[-1])}
        )
    cameras = []
    for camera in sorted(episode.images):
        images = episode.images[camera]
        buffers.extend(images)
        cameras.append({"name": camera, "sizes": [len(i) for i in images], "crcs": [zlib.crc32(i) for i in images]})
    header = msgpack.packb(
        {
            "header": dataclasses.asdict(episode.header),
            "label": _label_dict(episode.label),
            "leaves": leaves,
            "cameras": cameras,
        }
    )
    body = b"".join([_PREFIX.pack(MAGIC, VERSION, len(header), zlib.crc32(header)), header, *buffers])
    return body + hashlib.sha256(body).digest()


def decode_episode(data: bytes) -> Episode:
    """The inverse of `encode_episode`. Raises `EpisodeError` for bytes that are cut, altered or of another version."""
    header, offset = _decode_header(data)
    who = f"station {header['header'].get('station')!r}, episode {header['header'].get('id')!r}"
    leaves: dict[str, Any] = {}
    for leaf in header["leaves"]:
        leaves[leaf["name"]], offset = _decode_leaf(who, leaf, data, offset)
    images: dict[str, tuple[bytes, ...]] = {}
    for camera in header["cameras"]:
        images[camera["name"]], offset = _decode_images(who, camera, data, offset)
    _check_digest(who, data, offset)
    episode = _build_episode(who, header, leaves, images)
    check_episode(episode)
    return episode


def content_hash(data: bytes) -> str:
    """The SHA-256 that closes an encoded episode, in hexadecimal: the episode's identity in ledgers."""
    return data[-_DIGEST_BYTES:].hex()


def _arrays(episode: Episode) -> Iterator[tuple[str, np.ndarray]]:
    for name in _ARRAYS:
        yield name, np.ascontiguousarray(getattr(episode, name))
    if episode.objects is not None:
        yield "objects", np.ascontiguousarray(episode.objects)


def _label_dict(label: Label) -> dict[str, Any]:
    return {**dataclasses.asdict(label), "outcome": label.outcome.value}


def _decode_header(data: bytes) -> tuple[dict[str, Any], int]:
    if len(data) < _PREFIX.size + _DIGEST_BYTES:
        raise EpisodeError(f"encoded episode: {len(data)} bytes are too few for a header; was the file cut?")
    magic, version, header_bytes, crc = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise EpisodeError(f"encoded episode: begins with {magic!r}, expected {MAGIC!r}; this is not an episode")
    if version != VERSION:
        raise EpisodeError(f"encoded episode: version {version}, this program reads {VERSION}; update the older side")
    end = _PREFIX.size + header_bytes
    if end > len(data) - _DIGEST_BYTES or zlib.crc32(data[_PREFIX.size : end]) != crc:
        raise EpisodeError(f"encoded episode: its header of {header_bytes} bytes was cut or altered; send it again")
    header: dict[str, Any] = msgpack.unpackb(data[_PREFIX.size : end])
    return header, end


def _decode_leaf(who: str, leaf: dict[str, Any], data: bytes, offset: int) -> tuple[np.ndarray, int]:
    name, dtype, shape = leaf["name"], np.dtype(leaf["dtype"]), tuple(leaf["shape"])
    if name not in (*_ARRAYS, "objects") or dtype.hasobject:
        raise EpisodeError(f"{who}, leaf {name!r}: unknown leaf or dtype {dtype}")
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    raw = _slice(who, f"leaf {name!r}", data, offset, size, leaf["crc"])
    return np.frombuffer(raw, dtype).reshape(shape).copy(), offset + size


def _decode_images(who: str, camera: dict[str, Any], data: bytes, offset: int) -> tuple[tuple[bytes, ...], int]:
    images = []
    for row, (size, crc) in enumerate(zip(camera["sizes"], camera["crcs"], strict=True)):
        images.append(_slice(who, f"camera {camera['name']!r}, image {row}", data, offset, size, crc))
        offset += size
    return tuple(images), offset


def _slice(who: str, what: str, data: bytes, offset: int, size: int, crc: int) -> bytes:
    if size < 0 or offset + size > len(data) - _DIGEST_BYTES:
        raise EpisodeError(
            f"{who}, {what}: needs {size} bytes at {offset}, but only {len(data)} came; the file was cut, send it again"
        )
    raw = bytes(data[offset : offset + size])
    if zlib.crc32(raw) != crc:
        raise EpisodeError(f"{who}, {what}: checksum differs; the bytes were altered, send the episode again")
    return raw


def _check_digest(who: str, data: bytes, offset: int) -> None:
    if offset != len(data) - _DIGEST_BYTES:
        raise EpisodeError(f"{who}: {len(data) - _DIGEST_BYTES - offset} bytes too many after the last leaf")
    if hashlib.sha256(data[:offset]).digest() != bytes(data[offset:]):
        raise EpisodeError(f"{who}, header: SHA-256 differs; the bytes were altered, send the episode again")


def _build_episode(who: str, header: dict[str, Any], leaves: dict[str, Any], images: dict[str, Any]) -> Episode:
    missing = sorted(set(_ARRAYS) - set(leaves))
    if missing:
        raise EpisodeError(f"{who}: leaf {missing[0]!r} is missing (all missing: {missing})")
    label = {**header["label"], "outcome": Outcome(header["label"]["outcome"])}
    return Episode(
        header=EpisodeHeader(**header["header"]),
        label=Label(**label),
        images=images,
        objects=leaves.pop("objects", None),
        **leaves,
    )
