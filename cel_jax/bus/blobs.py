"""Large byte blobs with versions (policy weights), in checksummed pieces. Half a blob is never used."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import threading
import time
import zlib

from cel_jax.bus.arrays import Buffer
from cel_jax.bus.client import Client
from cel_jax.bus.errors import Conflict, WireError
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.server import Handler

PIECE_BYTES = 4 << 20
_WINDOW = 3
_PIECE_DEADLINE_S = 30.0


@dataclasses.dataclass(frozen=True)
class _Blob:
    version: int
    data: memoryview
    sha256: str


class BlobServer:
    """Holds the newest blobs; its handlers go into any server. Thread-safe.

    keep: how many versions stay, so that a fetch under way can end while the next version is published.
    """

    def __init__(self, name: str = "policy", keep: int = 2) -> None:
        self._name, self._keep, self._lock = name, keep, threading.Lock()
        self._blobs: collections.OrderedDict[int, _Blob] = collections.OrderedDict()

    def publish(self, version: int, data: Buffer) -> None:
        """Makes a version the newest. `data` must not change afterwards. Raises Conflict unless versions rise."""
        view = memoryview(data).toreadonly().cast("B")
        blob = _Blob(version, view, hashlib.sha256(view).hexdigest())
        with self._lock:
            newest = next(reversed(self._blobs), -1)
            if version <= newest:
                raise Conflict(f"{self._name}: version {version} does not follow version {newest}")
            self._blobs[version] = blob
            while len(self._blobs) > self._keep:
                self._blobs.popitem(last=False)

    def handlers(self) -> dict[str, Handler]:
        """Operations `latest` and `blob_piece`."""
        return {"latest": self.latest, "blob_piece": self.piece}

    def latest(self, request: Request) -> Reply:
        """Replies version (-1 when there is none), size_bytes, sha256."""
        with self._lock:
            blob = next(reversed(self._blobs.values()), None)
        if blob is None:
            return Reply({"version": -1, "size_bytes": 0, "sha256": ""})
        return Reply({"version": blob.version, "size_bytes": blob.data.nbytes, "sha256": blob.sha256})

    def piece(self, request: Request) -> Reply:
        """Header: version, offset, length. Replies crc32 and the bytes."""
        version, offset, length = (request.header.get(name) for name in ("version", "offset", "length"))
        with self._lock:
            blob = self._blobs.get(version) if type(version) is int else None
        if blob is None:
            raise Conflict(f"{self._name}: version {version!r} is not kept; ask for the latest")
        if type(offset) is not int or type(length) is not int or not 0 < length <= PIECE_BYTES or offset < 0:
            raise WireError(f"expected an offset and 1 to {PIECE_BYTES} bytes, got {offset!r} and {length!r}")
        part = blob.data[offset : offset + length]
        return Reply({"crc32": zlib.crc32(part)}, [part])


def fetch_blob(
    client: Client, newer_than: int, deadline_s: float = 600.0, piece_bytes: int = PIECE_BYTES
) -> tuple[int, bytearray] | None:
    """The newest blob when its version is above `newer_than`, whole and checked; else None.

    Raises BusError when the link breaks, the deadline passes or a checksum differs: nothing is returned then.
    """
    ends_s = time.monotonic() + deadline_s
    head = client.call("latest", deadline_s=min(deadline_s, _PIECE_DEADLINE_S)).header
    version, size = int(head["version"]), int(head["size_bytes"])
    if version <= newer_than:
        return None
    data = bytearray(size)
    window: collections.deque[tuple[int, int, concurrent.futures.Future[Reply]]] = collections.deque()
    for offset in range(0, size, piece_bytes):
        length = min(piece_bytes, size - offset)
        ask = {"version": version, "offset": offset, "length": length}
        left_s = max(0.001, min(_PIECE_DEADLINE_S, ends_s - time.monotonic()))
        window.append((offset, length, client.submit("blob_piece", ask, deadline_s=left_s)))
        if len(window) >= _WINDOW:
            _place(data, *window.popleft())
    for entry in window:
        _place(data, *entry)
    if hashlib.sha256(data).hexdigest() != head["sha256"]:
        raise Conflict(f"blob version {version} from {client.endpoint}: SHA-256 differs; dropped")
    return version, data


def _place(data: bytearray, offset: int, length: int, future: concurrent.futures.Future[Reply]) -> None:
    reply = future.result(_PIECE_DEADLINE_S + 5.0)
    part = memoryview(reply.buffers[0]) if len(reply.buffers) == 1 else memoryview(b"")
    if part.nbytes != length or zlib.crc32(part) != reply.header.get("crc32"):
        raise WireError(f"blob piece at {offset}: expected {length} bytes with their CRC, got {part.nbytes}; dropped")
    data[offset : offset + length] = part
