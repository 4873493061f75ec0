"""CURVE keys and the allow-list of TCP endpoints. Secret keys stay out of logs and of `repr`."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import threading
import time
from collections.abc import Mapping

import zmq
import zmq.utils.z85

from cel_jax.bus.errors import AccessRefused, WireError
from cel_jax.bus.identity import Identity

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_KEY_CHARS = 40  # Z85 of 32 bytes
LOOK_AGAIN_S = 1.0


@dataclasses.dataclass(frozen=True)
class CurveKeys:
    """One Z85 key pair."""

    public: bytes
    secret: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class ServerCurve:
    """What a server needs: its keys and who may connect.

    roles: operation -> the roles that may ask for it. Then a key is named `<role>` (any station) or `<role>.<node>`
    (stations `<node>-...` alone), and a request must come from a sender that its key allows. None: any known key.
    """

    keys: CurveKeys
    allowed: AllowList
    roles: Mapping[str, frozenset[str]] | None = None

    def check(self, key_name: str, sender: Identity, op: str) -> None:
        """Raises AccessRefused naming the key, and what the sender claimed."""
        if self.roles is None:
            return
        role, _, node = key_name.partition(".")
        if sender.role != role or (node and not sender.station.startswith(f"{node}-")):
            raise AccessRefused(f"key {key_name!r} may not speak for station {sender.station!r}, role {sender.role!r}")
        if role not in self.roles.get(op, frozenset()):
            raise AccessRefused(f"role {role!r} may not ask for {op!r}")


@dataclasses.dataclass(frozen=True)
class ClientCurve:
    """What a client needs: its keys and the public key of the server that it expects."""

    keys: CurveKeys
    server_public: bytes


class AllowList:
    """Public keys that may connect, by name. Thread-safe; changes hold for the next connection."""

    def __init__(self, keys: Mapping[str, bytes] | None = None) -> None:
        self._lock = threading.Lock()
        self._names = {public: name for name, public in (keys or {}).items()}

    def add(self, name: str, public: bytes) -> None:
        with self._lock:
            self._names[public] = name

    def remove(self, public: bytes) -> None:
        with self._lock:
            self._names.pop(public, None)

    def name(self, public: bytes) -> str | None:
        """The name of a key, or None when it is unknown."""
        with self._lock:
            return self._names.get(public)


def generate_keys(folder: str | os.PathLike[str], name: str) -> CurveKeys:
    """Makes `<name>.public` and `<name>.secret` (0600) in a folder (0700). Raises FileExistsError, never overwrites."""
    place = _key_folder(folder, name)
    public, secret = zmq.curve_keypair()
    _write_private(place / f"{name}.secret", secret)
    _write_private(place / f"{name}.public", public)
    return CurveKeys(public, secret)


def load_keys(folder: str | os.PathLike[str], name: str) -> CurveKeys:
    """Reads a key pair; refuses a secret that others can read."""
    place = _key_folder(folder, name)
    path = place / f"{name}.secret"
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise PermissionError(f"secret key {str(path)!r} has mode {mode:04o}; expected 0600, chmod it")
    return CurveKeys(load_public(folder, name), _check_key(path.read_bytes(), path))


def load_public(folder: str | os.PathLike[str], name: str) -> bytes:
    """Reads a public key."""
    path = _key_folder(folder, name) / f"{name}.public"
    return _check_key(path.read_bytes(), path)


class FolderAllowList(AllowList):
    """Every `*.public` key of a folder, named by its file. An unknown key lets the folder be read again, at most once
    in LOOK_AGAIN_S, so that a newly invited peer passes without a restart."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(_read_public(folder))
        self._folder, self._next_s = folder, 0.0

    def name(self, public: bytes) -> str | None:
        known = super().name(public)
        if known is not None or time.monotonic() < self._next_s:
            return known
        self._next_s = time.monotonic() + LOOK_AGAIN_S
        for name, key in _read_public(self._folder).items():
            self.add(name, key)
        return super().name(public)


def load_allow_list(folder: str | os.PathLike[str]) -> AllowList:
    """The allow-list of a folder; removing a key from the folder needs `remove`, or a restart."""
    return FolderAllowList(pathlib.Path(folder))


def _read_public(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.stem: _check_key(path.read_bytes(), path) for path in sorted(folder.glob("*.public"))}


def apply_server_curve(socket: zmq.Socket[bytes], curve: ServerCurve) -> None:
    """Makes a socket a CURVE server; the context needs a ZAP handler before it binds."""
    socket.curve_server = True
    socket.curve_publickey = curve.keys.public
    socket.curve_secretkey = curve.keys.secret
    socket.zap_domain = b"cel"


def apply_client_curve(socket: zmq.Socket[bytes], curve: ClientCurve) -> None:
    """Makes a socket a CURVE client."""
    socket.curve_publickey = curve.keys.public
    socket.curve_secretkey = curve.keys.secret
    socket.curve_serverkey = curve.server_public


def answer_zap(frames: list[bytes], allowed: AllowList) -> tuple[list[bytes], bool]:
    """The answer to one authentication request of libzmq (ZeroMQ RFC 27), and whether it admits the peer."""
    if len(frames) < 6 or frames[0] != b"1.0":
        raise WireError(f"expected a ZAP 1.0 request of six frames or more, got {len(frames)}")
    is_curve = frames[5] == b"CURVE" and len(frames) == 7
    name = allowed.name(zmq.utils.z85.encode(frames[6])) if is_curve else None
    if name is None:
        return [b"1.0", frames[1], b"400", b"unknown key", b"", b""], False
    return [b"1.0", frames[1], b"200", b"ok", name.encode(), b""], True


def _key_folder(folder: str | os.PathLike[str], name: str) -> pathlib.Path:
    if not _NAME.fullmatch(name):
        raise ValueError(f"key name {name!r}: expected letters, digits, dot, dash and underscore")
    place = pathlib.Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


def _write_private(path: pathlib.Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)


def _check_key(content: bytes, path: pathlib.Path) -> bytes:
    key = content.strip()
    if len(key) != _KEY_CHARS:
        raise ValueError(f"key file {str(path)!r}: expected {_KEY_CHARS} characters, got {len(key)}")
    return key
