"""msgpack with numpy arrays, as openpi's clients speak it. No pickle: dtypes of objects and records are refused."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np

KINDS = "biuf"  # booleans, integers, floats


class WireError(ValueError):
    """A message that cannot be read; it says what came."""


def pack(value: Any) -> bytes:
    """Nested dicts, lists, strings, numbers and arrays. Raises WireError for another dtype (bfloat16: send f32)."""
    return msgpack.packb(value, default=_encode)


def unpack(data: bytes) -> Any:
    """The inverse; arrays are read-only views of `data`. Raises WireError."""
    try:
        return msgpack.unpackb(data, object_hook=_decode)
    except (msgpack.UnpackException, ValueError, TypeError, KeyError) as error:
        raise WireError(f"a message of {len(data)} bytes is not msgpack with numpy arrays: {error}") from error


def _encode(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        raise WireError(f"cannot send {type(value).__name__}; send numpy arrays, numbers, text, lists and dicts")
    _check(value.dtype)
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decode(entry: dict[Any, Any]) -> Any:
    if b"__ndarray__" in entry:
        dtype, shape, data = np.dtype(entry[b"dtype"]), tuple(entry[b"shape"]), entry[b"data"]
        _check(dtype)
        if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
            raise WireError(f"an array of {dtype} {shape} came with {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)
    if b"__npgeneric__" in entry:
        dtype = np.dtype(entry[b"dtype"])
        _check(dtype)
        return dtype.type(entry[b"data"])
    return entry


def _check(dtype: np.dtype) -> None:
    if dtype.kind not in KINDS or dtype.name == "bfloat16":
        raise WireError(f"dtype {dtype} cannot travel; convert it to float32, an integer or a boolean")
