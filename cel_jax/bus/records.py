"""The file of one spooled episode: a magic line, frames, a label, and an end that proves that nothing is missing.

A record is kind (1 byte), length and CRC32 of the payload (little-endian 32 bit), payload. The end record's payload is
the SHA-256 of everything before it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from cel_jax.bus.durable import file_sha256

MAGIC = b"CEL-EPISODE-1\n"
FRAME, LABEL, END = b"F", b"L", b"E"
MAX_RECORD_BYTES = 1 << 28
_HEAD = struct.Struct("<cII")


class RecordError(ValueError):
    """An episode file that is incomplete or damaged."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One record and where it starts in the file."""

    kind: bytes
    payload: bytes
    start: int


@dataclasses.dataclass(frozen=True)
class EpisodeRecords:
    """A whole labelled episode as its worker wrote it; the payloads are opaque here."""

    frames: list[bytes]
    label: bytes


def write_record(file: BinaryIO, kind: bytes, payload: bytes) -> None:
    """Appends one record."""
    if len(payload) > MAX_RECORD_BYTES:
        raise ValueError(f"a record holds at most {MAX_RECORD_BYTES} bytes, got {len(payload)}")
    file.write(_HEAD.pack(kind, len(payload), zlib.crc32(payload)) + payload)


def read_records(path: pathlib.Path) -> Iterator[Record]:
    """All records in order. Raises RecordError at the first that is incomplete or damaged."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise RecordError(f"{path.name}: not an episode file")
        while head := file.read(_HEAD.size):
            yield _read_record(file, head, path.name)


def _read_record(file: BinaryIO, head: bytes, name: str) -> Record:
    start = file.tell() - len(head)
    if len(head) < _HEAD.size:
        raise RecordError(f"{name}: cut off at byte {start}")
    kind, length, crc = _HEAD.unpack(head)
    if kind not in (FRAME, LABEL, END) or length > MAX_RECORD_BYTES:
        raise RecordError(f"{name}: damaged record at byte {start}")
    payload = file.read(length)
    if len(payload) < length or zlib.crc32(payload) != crc:
        raise RecordError(f"{name}: record at byte {start} is cut off or damaged")
    return Record(kind, payload, start)


def frames_end(path: pathlib.Path) -> int:
    """The byte after the last frame: where a label goes. Raises RecordError."""
    end = path.stat().st_size
    for record in read_records(path):
        if record.kind != FRAME:
            return record.start
    return end


def check_complete(path: pathlib.Path) -> None:
    """Raises RecordError unless the file has frames, one label and a true end."""
    _parse(path, keep_frames=False)


def read_episode(path: pathlib.Path) -> EpisodeRecords:
    """Frames and label of a complete file. Raises RecordError."""
    return _parse(path, keep_frames=True)


def _parse(path: pathlib.Path, keep_frames: bool) -> EpisodeRecords:
    frames: list[bytes] = []
    label: bytes | None = None
    for record in read_records(path):
        if record.kind == END and label is not None:
            _check_end(path, record)
            return EpisodeRecords(frames, label)
        if record.kind == END or label is not None:
            break
        if record.kind == LABEL:
            label = record.payload
        elif keep_frames:
            frames.append(record.payload)
    raise RecordError(f"{path.name}: expected frames, one label and an end; it is incomplete")


def _check_end(path: pathlib.Path, end: Record) -> None:
    if path.stat().st_size != end.start + _HEAD.size + len(end.payload):
        raise RecordError(f"{path.name}: bytes after the end")
    if file_sha256(path, end.start).encode() != end.payload:
        raise RecordError(f"{path.name}: its SHA-256 differs from the one in its end record")
