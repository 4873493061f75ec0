"""A version of the weights as one block of bytes, in the dtype that inference computes in.

Layout: 8 bytes, the header's length (little endian); the header, JSON {"dtype", "leaves": [[name, shape], ...]}; the
leaves' bytes in that order. The bus cuts the block into checksummed pieces; a block that is short is refused here, too.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.models.params_io import check_tree, flatten, unflatten
from cel_jax.models.pi0 import Params
from cel_jax.models.presets import Pi0Config

PREFIX_BYTES = 8


@functools.partial(jax.jit, static_argnums=1)
def snapshot(params: Params, dtype: str) -> Params:
    """A copy on the devices in `dtype`: all that the learner waits for. Its next step may give up `params`."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype, copy=True), params)


def to_bytes(params: Params, dtype: str) -> bytearray:
    """Fetches the leaves and lays them out, each copied once. For a thread beside the learner, on a `snapshot`."""
    flat = flatten(params)
    for leaf in flat.values():
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    stored = _dtype(dtype)
    header = json.dumps({"dtype": dtype, "leaves": [[name, list(leaf.shape)] for name, leaf in flat.items()]}).encode()
    sizes = [math.prod(leaf.shape) * stored.itemsize for leaf in flat.values()]
    block = bytearray(PREFIX_BYTES + len(header) + sum(sizes))
    block[:PREFIX_BYTES] = len(header).to_bytes(PREFIX_BYTES, "little")
    block[PREFIX_BYTES : PREFIX_BYTES + len(header)] = header
    offset = PREFIX_BYTES + len(header)
    for leaf, size in zip(flat.values(), sizes, strict=True):
        target = np.frombuffer(block, np.uint8, size, offset)
        target[:] = np.ascontiguousarray(np.asarray(leaf).astype(stored, copy=False)).reshape(-1).view(np.uint8)
        offset += size
    return block


def from_bytes(data: Any, config: Pi0Config) -> Params:
    """Views into `data` (any buffer). Raises ValueError for a damaged block, or naming a leaf that does not fit."""
    view = memoryview(data).cast("B")
    header, offset = _read_header(view)
    stored = _dtype(header["dtype"])
    sizes = [math.prod(shape) * stored.itemsize for _, shape in header["leaves"]]
    if offset + sum(sizes) != len(view):
        raise ValueError(f"published weights: {len(view)} bytes came, the header says {offset + sum(sizes)}")
    flat = {}
    for (name, shape), size in zip(header["leaves"], sizes, strict=True):
        flat[name] = np.frombuffer(view[offset : offset + size], stored).reshape(shape)
        offset += size
    check_tree(flat, config, "published weights")
    return unflatten(flat)


def _read_header(view: memoryview) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(view[:PREFIX_BYTES], "little")
    try:
        header = json.loads(bytes(view[PREFIX_BYTES : PREFIX_BYTES + length]))
        if not isinstance(header["dtype"], str) or not all(len(entry) == 2 for entry in header["leaves"]):
            raise ValueError("dtype and leaves [name, shape] expected")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"published weights: the header of {len(view)} bytes cannot be read: {error}") from error
    return header, PREFIX_BYTES + length


def _dtype(name: str) -> np.dtype:
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"published weights: dtype {name!r}, expected float32 or bfloat16")
    return np.dtype(jnp.bfloat16) if name == "bfloat16" else np.dtype(np.float32)
