"""Files that survive a power loss: fsync, rename, fsync of the folder. Names that never leave their folder."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shutil

from cel_jax.bus.errors import SpaceError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}")
_CHUNK_BYTES = 1 << 20


def check_id(episode_id: str) -> str:
    """An id that is safe as a file name. Raises ValueError."""
    if not isinstance(episode_id, str) or not _ID.fullmatch(episode_id):
        raise ValueError(f"episode id {episode_id!r}: expected letters, digits, dash, underscore, at most 120 in all")
    return episode_id


def sync_folder(folder: pathlib.Path) -> None:
    """Makes renames and removals in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: pathlib.Path) -> None:
    """Makes a file's content durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_durably(source: pathlib.Path, target: pathlib.Path) -> None:
    """fsync of the content, rename, fsync of the folder."""
    sync_file(source)
    os.replace(source, target)
    sync_folder(target.parent)


def write_durably(path: pathlib.Path, content: bytes) -> None:
    """Replaces a small file as a whole."""
    draft = path.with_name(path.name + ".new")
    draft.write_bytes(content)
    rename_durably(draft, path)


def remove_durably(path: pathlib.Path) -> None:
    """Removes a file, if it is there."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def file_sha256(path: pathlib.Path, size_bytes: int | None = None) -> str:
    """SHA-256 of a file, or of its first bytes, as hex."""
    digest, left = hashlib.sha256(), path.stat().st_size if size_bytes is None else size_bytes
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def free_bytes(folder: pathlib.Path) -> int:
    """Free bytes of the folder's disk."""
    return shutil.disk_usage(folder).free


def require_space(folder: pathlib.Path, needed_bytes: int, free: int, what: str) -> None:
    """Raises SpaceError saying how much is missing."""
    if free < needed_bytes:
        raise SpaceError(
            f"{what}: {needed_bytes} bytes are needed in {str(folder)!r}, {free} are free; "
            "free space on this disk or move the folder"
        )
