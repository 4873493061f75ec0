"""Reads an orbax item's leaves block by block straight to their devices: the host never holds a large leaf.

Each stored chunk is decompressed as a stream, whatever its size, and its rows go to every shard that they are part of.
Chunks that are no zstd or plain zarr go through tensorstore, one whole chunk at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow

BLOCK_BYTES = 1 << 27  # of a leaf on the host at a time, and as much again in the dtype that it is cast to
READ_BYTES = 1 << 23

Bounds = tuple[tuple[int, int], ...]  # [start, stop) of each axis


def read_leaf(folder: pathlib.Path, name: str, dtype: np.dtype, sharding: Any | None) -> Any:
    """The leaf stored as `name` (dots between its keys), cast and placed; numpy, whole, where there is no sharding.

    Raises ValueError or OSError where it cannot be read.
    """
    stored = _Stored.open(folder, name)
    if sharding is None:
        return stored.whole().astype(dtype, copy=False)
    shards = _shards(sharding, stored.shape)
    if stored.nbytes <= BLOCK_BYTES:
        return jax.device_put(stored.whole().astype(dtype), sharding)
    parts = {bounds: [_zeros(bounds, dtype, device) for device in devices] for bounds, devices in shards.items()}
    for start, block in stored.blocks():
        block = block.astype(dtype)
        for bounds, arrays in parts.items():
            arrays[:] = [_put(array, bounds, start, block) for array in arrays]
    return jax.make_array_from_single_device_arrays(stored.shape, sharding, list(itertools.chain(*parts.values())))


def _shards(sharding: Any, shape: tuple[int, ...]) -> dict[Bounds, list[jax.Device]]:
    """The different parts of a leaf on this process's devices, and the devices that hold each."""
    found: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
        found.setdefault(bounds, []).append(device)
    return found


def _zeros(bounds: Bounds, dtype: np.dtype, device: jax.Device) -> jax.Array:
    return jnp.zeros([stop - start for start, stop in bounds], dtype, device=device)


def _put(array: jax.Array, bounds: Bounds, start: tuple[int, ...], block: np.ndarray) -> jax.Array:
    """The shard with that part of the block that lies in it; waits, so that the block can go."""
    ends = [at + size for at, size in zip(start, block.shape, strict=True)]
    cut = [(max(low, at), min(high, end)) for (low, high), at, end in zip(bounds, start, ends, strict=True)]
    if any(low >= high for low, high in cut):
        return array
    part = block[tuple(slice(low - at, high - at) for (low, high), at in zip(cut, start, strict=True))]
    offset = tuple(low - first for (low, _), (first, _) in zip(cut, bounds, strict=True))
    part = jax.device_put(np.ascontiguousarray(part), next(iter(array.devices())))
    return jax.block_until_ready(_update(array, part, offset))


@functools.partial(jax.jit, donate_argnums=0)
def _update(array: jax.Array, part: jax.Array, offset: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_update_slice(array, part, offset)


@dataclasses.dataclass(frozen=True)
class _Stored:
    """One leaf on disk. array: tensorstore's view. chunk: shape of the stored pieces. codec: `zstd`, `` (plain), or
    None where only tensorstore can read it."""

    name: str
    array: Any
    chunk: tuple[int, ...]
    codec: str | None

    @classmethod
    def open(cls, folder: pathlib.Path, name: str) -> _Stored:
        import tensorstore

        array = tensorstore.open(_spec(folder, name), open=True, read=True).result()
        meta = array.spec().to_json().get("metadata", {})
        codec = None
        if meta.get("zarr_format") == 2 and meta.get("order") == "C" and not meta.get("filters"):
            codec = {None: "", "zstd": "zstd"}.get((meta.get("compressor") or {}).get("id"))
        chunk = tuple(int(length or 0) for length in array.chunk_layout.read_chunk.shape or ())
        return cls(name, array, chunk, codec)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype.numpy_dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> np.ndarray:
        return np.asarray(self.array.read().result())

    def blocks(self) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """(offset in the leaf, part of it), each part once."""
        for cell in itertools.product(*(range(-(-n // c)) for n, c in zip(self.shape, self.chunk, strict=True))):
            start = tuple(i * c for i, c in zip(cell, self.chunk, strict=True))
            size = tuple(min(c, n - at) for at, n, c in zip(start, self.shape, self.chunk, strict=True))
            if self.codec is None:
                inside = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
                yield start, np.asarray(self.array[inside].read().result())
            else:
                yield from self._streamed(cell, start, size)

    def _streamed(
        self, cell: tuple[int, ...], start: tuple[int, ...], size: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """A chunk's rows of its first axis, some at a time. A chunk at the edge is stored whole, with padding."""
        row_bytes = math.prod(self.chunk[1:]) * self.dtype.itemsize
        rows = max(1, BLOCK_BYTES // row_bytes)
        with self._stream(".".join(map(str, cell))) as stream:
            for first in range(0, size[0], rows):
                count = min(rows, size[0] - first)
                data = stream.read(count * row_bytes)
                if len(data) != count * row_bytes:
                    raise ValueError(
                        f"leaf {self.name}, chunk {cell}: ends after {first} of {size[0]} rows; copy it anew"
                    )
                block = np.frombuffer(data, self.dtype).reshape(count, *self.chunk[1:])
                inside = (slice(None), *(slice(0, length) for length in size[1:]))
                yield (start[0] + first, *start[1:]), block[inside]

    def _stream(self, key: str) -> Any:
        raw = io.BufferedReader(_Value(self.array.kvstore, key), READ_BYTES)  # type: ignore[arg-type]
        return pyarrow.CompressedInputStream(raw, "zstd") if self.codec else raw


def _spec(folder: pathlib.Path, name: str) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{folder}/"}
    if (folder / "manifest.ocdbt").exists():
        store: dict[str, Any] = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    else:
        store = {"driver": "file", "path": f"{folder / name}/"}
    three = json.loads((folder / "_METADATA").read_text()).get("use_zarr3", False)
    return {"driver": "zarr3" if three else "zarr", "kvstore": store}


class _Value(io.RawIOBase):
    """A stored value as a file that is read in ranges."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key, self._at = store, key, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._range(len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _range(self, wanted: int) -> bytes:
        """Up to `wanted` bytes. The store knows no sizes and refuses a range that goes beyond the end: ask for less."""
        while wanted:
            try:
                found = self._store.read(self._key, byte_range=slice(self._at, self._at + wanted)).result()
            except ValueError as error:
                if "OUT_OF_RANGE" not in str(error):
                    raise
                wanted //= 2
                continue
            if found.state == "missing":
                raise ValueError(f"chunk {self._key} of {self._store.path} is missing; copy the checkpoint anew")
            return bytes(found.value)
        return b""
