"""Endpoints: unix sockets on one machine, TCP with CURVE keys between machines."""

from __future__ import annotations

import os
import pathlib
import socket
import stat

from cel_jax.bus.errors import BindError

MAX_IPC_PATH = 107  # sun_path has 108 bytes with its end mark


def ipc_endpoint(folder: str | os.PathLike[str], name: str) -> str:
    """`ipc://` endpoint in a folder that only this user can enter; makes the folder. Raises BindError."""
    path = pathlib.Path(folder).absolute() / name
    check_ipc_path(str(path))
    private_folder(path.parent)
    return f"ipc://{path}"


def check_ipc_path(path: str) -> None:
    """Raises BindError when the kernel would refuse the path."""
    length = len(os.fsencode(path))
    if length > MAX_IPC_PATH:
        raise BindError(
            f"unix socket path of {length} bytes, the kernel allows {MAX_IPC_PATH}: {path!r}; "
            "use a shorter folder, for instance one under XDG_RUNTIME_DIR"
        )


def private_folder(folder: pathlib.Path) -> None:
    """Makes a folder with mode 0700, or checks that an existing one is private to this user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise BindError(
            f"folder {str(folder)!r} of a unix socket must belong to this user with mode 0700, it has "
            f"{stat.S_IMODE(found.st_mode):04o} and owner {found.st_uid}; use a folder of its own, or chmod 700 it"
        )


def prepare_bind(endpoint: str, has_keys: bool) -> None:
    """Checks an endpoint before zmq binds it. Raises BindError saying what to do."""
    if endpoint.startswith("ipc://"):
        path = endpoint[len("ipc://") :]
        check_ipc_path(path)
        private_folder(pathlib.Path(path).parent)
        _refuse_live_socket(endpoint, path)
    else:
        require_keys(endpoint, has_keys)


def require_keys(endpoint: str, has_keys: bool) -> None:
    """TCP without CURVE keys is refused."""
    if not endpoint.startswith(("tcp://", "ipc://")):
        raise BindError(f"endpoint {endpoint!r}: expected ipc://<path> or tcp://<host>:<port>")
    if endpoint.startswith("tcp://") and not has_keys:
        raise BindError(f"endpoint {endpoint!r}: TCP needs CURVE keys, see cel_jax.bus.security")


def _refuse_live_socket(endpoint: str, path: str) -> None:
    # zmq would silently take a unix socket away from a living server
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(1.0)
    try:
        probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except OSError as error:
        raise BindError(f"endpoint {endpoint!r} cannot be probed: {error}; stop the process that holds it") from error
    finally:
        probe.close()
    raise BindError(f"endpoint {endpoint!r} is served by a living process; stop it first or choose another endpoint")
