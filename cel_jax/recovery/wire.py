"""The control sockets' addresses and messages: one msgpack map each, bounded in size. The only file that knows zmq
options; another transport needs only these functions."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import zmq

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_QUEUE = 4096
MAX_IPC_PATH = 100  # sun_path holds 108


class WireError(RuntimeError):
    """A message that is not one of ours."""


def control_dir(run_dir: Path) -> Path:
    """Where a run keeps its sockets, locks, journals and beat files."""
    path = run_dir / "control"
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)  # sockets are protected by their folder
    return path


def endpoint(run_dir: Path, name: str) -> str:
    """The ipc address `name` of a run; a long folder name is replaced by a hash in the temporary folder."""
    path = control_dir(run_dir).resolve() / f"{name}.sock"
    if len(str(path)) > MAX_IPC_PATH:
        short = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"cel-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{short}.sock"
    return f"ipc://{path}"


def bind_router(context: zmq.Context[Any], address: str) -> zmq.Socket[bytes]:
    """A ROUTER that replaces the peer of a reused identity and never lingers."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    _limits(socket)
    socket.bind(address)
    return socket


def connect_dealer(context: zmq.Context[Any], address: str, identity: str) -> zmq.Socket[bytes]:
    """A DEALER under a fixed identity; it reconnects by itself."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity.encode())
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    _limits(socket)
    socket.connect(address)
    return socket


def _limits(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUE)
    socket.setsockopt(zmq.RCVHWM, MAX_QUEUE)


def pack(message: dict[str, Any]) -> bytes:
    """Raises WireError above MAX_MESSAGE_BYTES."""
    data = msgpack.packb(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"control message of {len(data)} bytes, at most {MAX_MESSAGE_BYTES}: {sorted(message)}")
    return data


def unpack(data: bytes) -> dict[str, Any]:
    """Raises WireError for anything but a map."""
    try:
        message = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"not a control message: {data[:40]!r}") from error
    if not isinstance(message, dict):
        raise WireError(f"a control message is a map, got {type(message).__name__}")
    return message
