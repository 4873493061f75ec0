"""TFRecord files and tf.train.Example messages, read without TensorFlow.

A record is: length (8 bytes), masked CRC-32C of the length, data, masked CRC-32C of the data; little-endian.
"""

from __future__ import annotations

import functools
import pathlib
import struct
from collections.abc import Iterator

import numpy as np

POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
MASK_DELTA = 0xA282EAD8
LANE_BYTES = 512  # bytes that one lane of the vectorised checksum walks through
MAX_RECORD_BYTES = 1 << 31

Value = np.ndarray | list[bytes]


class DamagedRecord(ValueError):
    """A TFRecord file that is cut off or altered; the message names file and record."""


def read_records(path: pathlib.Path) -> Iterator[bytes]:
    """Yields the records' data, checksums verified. Raises `DamagedRecord` naming file and record."""
    with path.open("rb") as file:
        number = 0
        while head := file.read(12):
            where = f"{path}: record {number}"
            data = file.read(_checked_length(where, head))
            tail = file.read(4)
            _check_data(where, data, struct.unpack("<Q", head[:8])[0], tail)
            yield data
            number += 1


def _checked_length(where: str, head: bytes) -> int:
    if len(head) < 12:
        raise DamagedRecord(f"{where}: the file ends within its header; copy it again")
    length, crc = struct.unpack("<QI", head)
    if masked_crc32c(head[:8]) != crc or length > MAX_RECORD_BYTES:
        raise DamagedRecord(f"{where}: the checksum of its length does not fit: damaged, or not a TFRecord file")
    return length


def _check_data(where: str, data: bytes, length: int, tail: bytes) -> None:
    if len(data) < length or len(tail) < 4:
        raise DamagedRecord(f"{where}: {len(data)} of {length} bytes; the file is cut off, copy it again")
    if masked_crc32c(data) != struct.unpack("<I", tail)[0]:
        raise DamagedRecord(f"{where}: the checksum of its {length} bytes does not fit; copy the file again")


def masked_crc32c(data: bytes) -> int:
    """TFRecord's rotated and shifted CRC-32C."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C. Long data are walked in parallel lanes whose checksums are then joined (the code is linear)."""
    if len(data) < 4 * LANE_BYTES:
        return _crc_bytes(0xFFFFFFFF, data) ^ 0xFFFFFFFF
    lanes = _lane_checksums(data)
    joined, shift = 0, _shift_tables()
    for lane in lanes.tolist():
        moved = shift[0][joined & 255] ^ shift[1][joined >> 8 & 255] ^ shift[2][joined >> 16 & 255]
        joined = moved ^ shift[3][joined >> 24] ^ lane
    return joined ^ 0xFFFFFFFF


def _crc_bytes(crc: int, data: bytes) -> int:
    table = _table().tolist()
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc


def _lane_checksums(data: bytes) -> np.ndarray:
    """uint32 [lanes], started from 0. Zeros in front change nothing; the usual start is put into the first 4 bytes."""
    lanes = -(-len(data) // LANE_BYTES)
    padded = np.zeros(lanes * LANE_BYTES, np.uint8)
    front = len(padded) - len(data)
    padded[front:] = np.frombuffer(data, np.uint8)
    padded[front : front + 4] ^= 0xFF
    return _walk(np.zeros(lanes, np.uint32), np.ascontiguousarray(padded.reshape(lanes, LANE_BYTES).T))


def _walk(crc: np.ndarray, columns: np.ndarray) -> np.ndarray:
    table = _table()
    for column in columns:
        crc = table[(crc ^ column) & 255] ^ (crc >> 8)
    return crc


@functools.lru_cache(maxsize=1)
def _table() -> np.ndarray:
    """uint32 [256]: the checksum step of every byte."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(POLYNOMIAL), crc >> 1).astype(np.uint32)
    return crc


@functools.lru_cache(maxsize=1)
def _shift_tables() -> list[list[int]]:
    """4 x 256: what `LANE_BYTES` zero bytes make of each byte of a checksum."""
    starts = (np.arange(256, dtype=np.uint32)[None] << np.array([[0], [8], [16], [24]], np.uint32)).reshape(-1)
    moved = _walk(starts.astype(np.uint32), np.zeros((LANE_BYTES, 1), np.uint8))
    return moved.reshape(4, 256).tolist()


def parse_example(data: bytes) -> dict[str, Value]:
    """tf.train.Example -> name -> list of bytes, float32 [n] or int64 [n]. Raises ValueError where it is malformed."""
    found: dict[str, Value] = {}
    for number, features in _fields(data):
        if number != 1:
            continue
        for _, entry in _fields(_as_bytes(features)):
            pair = dict(_fields(_as_bytes(entry)))
            found[_as_bytes(pair.get(1, b"")).decode()] = _feature(_as_bytes(pair.get(2, b"")))
    return found


def _feature(data: bytes) -> Value:
    """Feature is one of: 1 BytesList, 2 FloatList, 3 Int64List; each holds its values in field 1."""
    for kind, content in _fields(data):
        values = [value for number, value in _fields(_as_bytes(content)) if number == 1]
        if kind == 1:
            return [_as_bytes(value) for value in values]
        if kind == 2:
            return np.frombuffer(b"".join(_as_bytes(value) for value in values), "<f4")
        if kind == 3:
            return _int64s(values)
    return []


def _int64s(values: list[bytes | int]) -> np.ndarray:
    """Packed (bytes of varints) or single values -> int64 [n]."""
    parts = [_varints(np.frombuffer(v, np.uint8)) if isinstance(v, bytes) else np.array([v], np.uint64) for v in values]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def _varints(packed: np.ndarray) -> np.ndarray:
    """uint8 [bytes] -> uint64 [n]: seven bits a byte, lowest first, the last byte of each below 128."""
    ends = np.flatnonzero(packed < 128)
    if len(packed) and (len(ends) == 0 or ends[-1] != len(packed) - 1):
        raise ValueError("a list of integers ends within a number")
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64) if len(ends) else np.zeros(0, np.int64)
    place = np.arange(len(packed)) - np.repeat(starts, ends - starts + 1)
    bits = (packed & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.add.reduceat(bits, starts) if len(starts) else np.zeros(0, np.uint64)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yields (field number, bytes or integer) of a protocol buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"malformed message: wire type {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"malformed message: {size} bytes wanted at byte {at} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    raise ValueError(f"malformed message: a number does not end at byte {at}")


def _as_bytes(value: bytes | int) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("malformed message: a number stands where bytes belong")
    return value
