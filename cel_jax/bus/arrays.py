"""Named arrays, byte strings and lists of byte strings <-> plain metadata and raw buffers. No pickle.

A tree is a mapping from names to leaves or to further mappings. Leaves: a numpy array of a listed dtype, `bytes`,
or a list of `bytes` (JPEGs), which becomes one buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cel_jax.bus.errors import WireError

Buffer = bytes | bytearray | memoryview
DTYPES = frozenset(["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"])
MAX_LEAVES = 4096
MAX_DEPTH = 6
MAX_RANK = 16
MAX_LEAF_BYTES = 1 << 30


def pack_arrays(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Buffer]]:
    """Metadata that msgpack can carry, and one buffer for each leaf, in order. Raises WireError for other types."""
    buffers: list[Buffer] = []
    return _pack_node(tree, buffers, "", 0), buffers


def unpack_arrays(meta: Any, buffers: Sequence[Buffer]) -> dict[str, Any]:
    """The inverse. Arrays are read-only views of the buffers. Raises WireError naming the leaf that does not fit."""
    source = iter(buffers)
    tree = _unpack_node(meta, source, "", 0)
    left = sum(1 for _ in source)
    if left:
        raise WireError(f"{left} buffers more than the metadata describes")
    return tree


def size_bytes(buffers: Sequence[Buffer]) -> int:
    """Bytes of all buffers together."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _pack_node(tree: Mapping[str, Any], buffers: list[Buffer], path: str, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise WireError(f"{path}: nested deeper than {MAX_DEPTH}")
    meta: dict[str, Any] = {}
    for name, value in tree.items():
        if not isinstance(name, str):
            raise WireError(f"{path}: names must be strings, got {name!r}")
        where = f"{path}/{name}"
        if isinstance(value, Mapping):
            meta[name] = {"t": _pack_node(value, buffers, where, depth + 1)}
        else:
            meta[name] = _pack_leaf(value, buffers, where)
    return meta


def _pack_leaf(value: Any, buffers: list[Buffer], path: str) -> dict[str, Any]:
    if len(buffers) >= MAX_LEAVES:
        raise WireError(f"{path}: more than {MAX_LEAVES} leaves in one message")
    if isinstance(value, (np.ndarray, np.generic)):
        return _pack_array(np.asarray(value), buffers, path)
    if isinstance(value, (bytes, bytearray, memoryview)):
        buffers.append(value)
        return {"b": memoryview(value).nbytes}
    if isinstance(value, (list, tuple)) and all(isinstance(part, bytes) for part in value):
        buffers.append(b"".join(value))
        return {"l": [len(part) for part in value]}
    raise WireError(f"{path}: expected an array, bytes or a list of bytes, got {type(value).__name__}")


def _pack_array(array: np.ndarray, buffers: list[Buffer], path: str) -> dict[str, Any]:
    plain = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if plain.dtype.str not in DTYPES:
        raise WireError(f"{path}: dtype {array.dtype} is not one of {sorted(DTYPES)}")
    # reshape: an array without axes has no byte view
    buffers.append(plain.reshape(-1).view(np.uint8).data if plain.size else b"")
    return {"d": plain.dtype.str, "s": list(plain.shape)}


def _unpack_node(meta: Any, source: Iterator[Buffer], path: str, depth: int) -> dict[str, Any]:
    if not isinstance(meta, dict) or depth > MAX_DEPTH:
        raise WireError(f"{path or '/'}: expected a mapping no deeper than {MAX_DEPTH}, got {type(meta).__name__}")
    return {name: _unpack_entry(entry, source, f"{path}/{name}", depth) for name, entry in meta.items()}


def _unpack_entry(entry: Any, source: Iterator[Buffer], path: str, depth: int) -> Any:
    if not isinstance(entry, dict):
        raise WireError(f"{path}: expected a leaf description, got {type(entry).__name__}")
    if "t" in entry:
        return _unpack_node(entry["t"], source, path, depth + 1)
    buffer = next(source, None)
    if buffer is None:
        raise WireError(f"{path}: its buffer is missing")
    if "d" in entry:
        return _unpack_array(entry, buffer, path)
    if "l" in entry:
        return _unpack_list(entry["l"], buffer, path)
    _check_size(entry.get("b"), buffer, path)
    return bytes(buffer)


def _unpack_array(entry: dict[str, Any], buffer: Buffer, path: str) -> np.ndarray:
    dtype, shape = entry["d"], entry.get("s", [])
    if dtype not in DTYPES:
        raise WireError(f"{path}: dtype {dtype!r} is not one of {sorted(DTYPES)}")
    if not _is_sizes(shape) or len(shape) > MAX_RANK:
        raise WireError(f"{path}: bad shape {shape!r}")
    _check_size(math.prod(shape) * np.dtype(dtype).itemsize, buffer, path)
    array = np.frombuffer(buffer, dtype=dtype).reshape(shape)
    array.flags.writeable = False
    return array


def _unpack_list(sizes: Any, buffer: Buffer, path: str) -> list[bytes]:
    if not _is_sizes(sizes):
        raise WireError(f"{path}: bad sizes {sizes!r}")
    _check_size(sum(sizes), buffer, path)
    view, parts, start = memoryview(buffer), [], 0
    for size in sizes:
        parts.append(bytes(view[start : start + size]))
        start += size
    return parts


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= MAX_LEAF_BYTES for size in value)


def _check_size(expected: Any, buffer: Buffer, path: str) -> None:
    found = memoryview(buffer).nbytes
    if type(expected) is not int or expected != found or found > MAX_LEAF_BYTES:
        raise WireError(f"{path}: expected {expected!r} bytes (at most {MAX_LEAF_BYTES}), got {found}")
