"""The streaming form of an episode: an append-only file of one record a frame, so that a running or unlabelled
episode survives a crash of its process.

    with FrameLog.create(path, header) as log:
        log.append(frame)                 # reaches the kernel at once, the disk every `fsync_every_frames`
        log.finish()                      # closing record and fsync: the episode is complete
    contents = read_frame_log(path)       # after a crash: whatever is whole
    episode = frames_to_episode(contents.header, label, contents.frames)

Record: payload length uint32, CRC-32 uint32 (little endian), msgpack payload. The first record is the header.
Shape letters: S state numbers, A action numbers, O objects, P numbers per object pose.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from cel_jax.data.episode import Episode, EpisodeHeader, Label, Outcome
from cel_jax.data.episode_check import EpisodeError, check_episode, describe

_RECORD = struct.Struct("<II")
_VERSION = 1
MAX_RECORD_BYTES = 1 << 28  # a length beyond it is damage, not a frame


@dataclasses.dataclass(frozen=True)
class Frame:
    """One control step as the robot's side records it.

    state: float32 [S]. action: float32 [A], what was really executed. images: camera -> JPEG, {} when not captured.
    objects: float32 [O, P] or None. source: a `Source` value. stage: -1 where unknown.
    """

    step: int
    state: np.ndarray
    action: np.ndarray
    images: Mapping[str, bytes]
    objects: np.ndarray | None
    capture_time_s: float
    policy_version: int
    source: int
    intervened: bool
    stage: int = -1


@dataclasses.dataclass(frozen=True)
class FrameLogContents:
    """What a frame log holds. `complete`: it was finished. `torn_bytes`: bytes lost at its end."""

    header: EpisodeHeader
    frames: tuple[Frame, ...]
    complete: bool
    torn_bytes: int


class FrameLog:
    """Writes the frames of one running episode. Not thread-safe: one episode has one writer."""

    def __init__(self, path: Path, file: Any, header: EpisodeHeader, fsync_every_frames: int) -> None:
        self.path, self.header = path, header
        self._file, self._fsync_every = file, fsync_every_frames
        self.num_frames = 0
        self.num_bytes = 0

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: EpisodeHeader, fsync_every_frames: int = 30) -> FrameLog:
        """Opens a new log; raises FileExistsError where the episode already has one."""
        target = Path(path)
        log = cls(target, open(target, "xb", buffering=0), header, fsync_every_frames)  # noqa: SIM115 closed in close
        log._write({"kind": "header", "version": _VERSION, "header": dataclasses.asdict(header)})
        os.fsync(log._file.fileno())
        return log

    def append(self, frame: Frame) -> None:
        """Adds the next frame. Raises `EpisodeError` where a step is skipped or repeated."""
        if frame.step != self.num_frames:
            raise EpisodeError(f"{describe(self.header)}: frame {frame.step} came, expected {self.num_frames}")
        self._write(_frame_record(frame))
        self.num_frames += 1
        if self.num_frames % self._fsync_every == 0:
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Declares the episode complete; on return it is on disk."""
        self._write({"kind": "end", "num_frames": self.num_frames})
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FrameLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, record: dict[str, Any]) -> None:
        payload = msgpack.packb(record)
        data = _RECORD.pack(len(payload), zlib.crc32(payload)) + payload
        written = self._file.write(data)
        if written != len(data):
            raise OSError(f"{describe(self.header)}: wrote {written} of {len(data)} bytes to {self.path}; disk full?")
        self.num_bytes += len(data)


def read_frame_log(path: str | os.PathLike[str]) -> FrameLogContents:
    """Reads a log up to its first torn record. Raises `EpisodeError` for a log without header or damaged inside."""
    data = Path(path).read_bytes()
    records, end = _read_records(data)
    if not records or records[0].get("kind") != "header" or records[0].get("version") != _VERSION:
        raise EpisodeError(f"frame log {path}: no header of version {_VERSION}; the episode never began")
    header = EpisodeHeader(**records[0]["header"])
    complete = records[-1]["kind"] == "end"
    frames = tuple(_record_frame(record) for record in records[1:] if record["kind"] == "frame")
    if complete and (records[-1]["num_frames"] != len(frames) or end != len(data)):
        raise EpisodeError(
            f"{describe(header)}: finished with {records[-1]['num_frames']} frames, "
            f"but {len(frames)} are readable in {path}"
        )
    return FrameLogContents(header, frames, complete, len(data) - end)


def _read_records(data: bytes) -> tuple[list[dict[str, Any]], int]:
    records, offset = [], 0
    for payload, end in _payloads(data):
        records.append(msgpack.unpackb(payload))
        offset = end
    return records, offset


def _payloads(data: bytes) -> Iterator[tuple[bytes, int]]:
    offset = 0
    while offset + _RECORD.size <= len(data):
        size, crc = _RECORD.unpack_from(data, offset)
        end = offset + _RECORD.size + size
        payload = data[offset + _RECORD.size : end]
        if size == 0 or size > MAX_RECORD_BYTES or end > len(data) or zlib.crc32(payload) != crc:
            return
        yield payload, end
        offset = end


def encode_frame(frame: Frame) -> bytes:
    """One frame as bytes, for a spool that keeps frames itself."""
    packed: bytes = msgpack.packb(_frame_record(frame))
    return packed


def decode_frame(data: bytes) -> Frame:
    """The inverse of `encode_frame`."""
    return _record_frame(msgpack.unpackb(data))


def encode_label(header: EpisodeHeader, label: Label) -> bytes:
    """Whose episode it is and what was said of it: what a spool keeps behind the frames."""
    said = {**dataclasses.asdict(label), "outcome": label.outcome.value}
    packed: bytes = msgpack.packb({"header": dataclasses.asdict(header), "label": said})
    return packed


def decode_label(data: bytes) -> tuple[EpisodeHeader, Label]:
    """The inverse of `encode_label`. Raises ValueError for an unknown outcome."""
    record = msgpack.unpackb(data)
    said = record["label"]
    return EpisodeHeader(**record["header"]), Label(**{**said, "outcome": Outcome(said["outcome"])})


def _frame_record(frame: Frame) -> dict[str, Any]:
    objects = None if frame.objects is None else np.asarray(frame.objects, np.float32)
    return {
        "kind": "frame",
        "step": int(frame.step),
        "images": dict(frame.images),
        "state": np.asarray(frame.state, np.float32).tobytes(),
        "action": np.asarray(frame.action, np.float32).tobytes(),
        "objects": None if objects is None else [list(objects.shape), objects.tobytes()],
        "capture_time_s": float(frame.capture_time_s),
        "policy_version": int(frame.policy_version),
        "source": int(frame.source),
        "intervened": bool(frame.intervened),
        "stage": int(frame.stage),
    }


def _record_frame(record: dict[str, Any]) -> Frame:
    fields = {key: value for key, value in record.items() if key != "kind"}
    for leaf in ("state", "action"):
        fields[leaf] = np.frombuffer(record[leaf], np.float32).copy()
    if record["objects"] is not None:
        shape, raw = record["objects"]
        fields["objects"] = np.frombuffer(raw, np.float32).reshape(shape).copy()
    return Frame(**fields)


def frames_to_episode(header: EpisodeHeader, label: Label, frames: Sequence[Frame]) -> Episode:
    """The labelled episode of a run of frames. Raises `EpisodeError` for gaps and for cameras that come and go."""
    who = describe(header)
    if not frames:
        raise EpisodeError(f"{who}: no frames; an empty episode is a discard and must not be sent")
    steps = [frame.step for frame in frames]
    if steps != list(range(len(frames))):
        raise EpisodeError(f"{who}: steps must run from 0 without gaps, got {steps[:5]}...{steps[-1]}")
    captured = [frame for frame in frames if frame.images]
    episode = Episode(
        header,
        label,
        state=_stack(who, "state", frames, np.float32),
        action=_stack(who, "action", frames, np.float32),
        image_steps=np.array([frame.step for frame in captured], np.int32),
        images=_images(who, captured),
        objects=_objects(who, frames),
        policy_version=_stack(who, "policy_version", frames, np.int64),
        source=_stack(who, "source", frames, np.uint8),
        intervened=_stack(who, "intervened", frames, np.bool_),
        stage=_stack(who, "stage", frames, np.int16),
        capture_time_s=_stack(who, "capture_time_s", frames, np.float64),
    )
    check_episode(episode)
    return episode


def _stack(who: str, leaf: str, frames: Sequence[Frame], dtype: Any) -> np.ndarray:
    values = [np.asarray(getattr(frame, leaf)) for frame in frames]
    for step, value in enumerate(values):
        if value.shape != values[0].shape:
            raise EpisodeError(f"{who}, leaf {leaf!r}: shape {value.shape} at frame {step}, {values[0].shape} before")
    return np.stack(values).astype(dtype)


def _objects(who: str, frames: Sequence[Frame]) -> np.ndarray | None:
    missing = [frame.step for frame in frames if frame.objects is None]
    if len(missing) == len(frames):
        return None
    if missing:
        raise EpisodeError(f"{who}, leaf 'objects': missing at frame {missing[0]}, present at others")
    return _stack(who, "objects", frames, np.float32)


def _images(who: str, captured: Sequence[Frame]) -> dict[str, tuple[bytes, ...]]:
    cameras = sorted({camera for frame in captured for camera in frame.images})
    for frame in captured:
        for camera in cameras:
            if not frame.images.get(camera):
                raise EpisodeError(f"{who}, camera {camera!r}: missing at captured frame {frame.step}")
    return {camera: tuple(frame.images[camera] for frame in captured) for camera in cameras}
