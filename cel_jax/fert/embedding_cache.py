"""Embeddings on disk, so that a restarted learner rebuilds its ring without the vision tower. numpy only."""

from __future__ import annotations

import logging
import os
import pathlib
import urllib.parse
import zipfile

import ml_dtypes
import numpy as np

log = logging.getLogger(__name__)


class EmbeddingCache:
    """One file per episode under `folder`/<tower hash>/, so that another tower's embeddings are never read."""

    def __init__(self, folder: str | pathlib.Path, tower: str):
        self._folder = pathlib.Path(folder) / tower
        self._folder.mkdir(parents=True, exist_ok=True)

    def save(self, episode_id: str, embeddings: np.ndarray, num_frames: int) -> None:
        """Write [n, D] and the episode's raw length; the file appears whole or not at all."""
        path = self._path(episode_id)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with open(partial, "wb") as file:
            np.savez(file, raw=_as_bits(embeddings), dtype=str(embeddings.dtype), num_frames=num_frames)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def load(self, episode_id: str) -> tuple[np.ndarray, int] | None:
        """(embeddings, raw length), or None where there is no readable file; a damaged one is named as such."""
        path = self._path(episode_id)
        try:
            with np.load(path, allow_pickle=False) as data:
                return data["raw"].view(_dtype(str(data["dtype"]))), int(data["num_frames"])
        except FileNotFoundError:
            return None
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError) as error:
            log.warning("embedding cache: %s of episode %s is damaged (%s); embedding it anew", path, episode_id, error)
            return None

    def keep_only(self, episode_ids: list[str]) -> None:
        """Delete the files of episodes that left the window, and what a crash left half-written."""
        wanted = {self._path(name) for name in episode_ids}
        for path in self._folder.iterdir():
            if path not in wanted:
                path.unlink(missing_ok=True)

    def drop(self, episode_id: str) -> None:
        self._path(episode_id).unlink(missing_ok=True)

    def _path(self, episode_id: str) -> pathlib.Path:
        return self._folder / f"{urllib.parse.quote(episode_id, safe='')}.npz"


def _as_bits(embeddings: np.ndarray) -> np.ndarray:
    """npz knows no bfloat16: two-byte numbers travel as uint16."""
    return embeddings.view(np.uint16) if embeddings.dtype.itemsize == 2 else embeddings


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
