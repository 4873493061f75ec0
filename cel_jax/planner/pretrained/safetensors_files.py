"""Published safetensors: one file, or shards under an index."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cel_jax.planner.policy import PolicyMismatch

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64", "F32", "F16", "BF16"}


class SafetensorsFiles:
    """A `TensorSource`. Raises PolicyMismatch for files that are missing, cut off or in another number format."""

    def __init__(self, folder: str | pathlib.Path) -> None:
        self._folder = pathlib.Path(folder)
        self.where = str(self._folder)
        self._files = {name: self._open(name) for name in self._file_names()}
        self._file_of = {tensor: name for name, file in self._files.items() for tensor in file.keys()}  # noqa: SIM118
        self._check_index()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(self._slice(name).get_shape()) for name in self._file_of}

    def read(self, name: str) -> np.ndarray:
        kind = self._slice(name).get_dtype()
        if kind not in FLOATS:
            raise PolicyMismatch(f"{self.where}: {name} is stored as {kind}; expected one of {sorted(FLOATS)}")
        return np.asarray(self._files[self._file_of[name]].get_tensor(name))

    def _slice(self, name: str) -> Any:
        return self._files[self._file_of[name]].get_slice(name)

    def _index(self) -> dict[str, str]:
        """Tensor -> file; empty where there is one file only."""
        path = self._folder / INDEX
        if not path.exists():
            return {}
        try:
            return dict(json.loads(path.read_text())["weight_map"])
        except (ValueError, LookupError, TypeError) as error:
            raise PolicyMismatch(f"{path}: no index of shards ({error!r}); get the checkpoint anew") from error

    def _file_names(self) -> list[str]:
        names = sorted(set(self._index().values())) or [SINGLE]
        missing = [name for name in names if not (self._folder / name).exists()]
        if missing:
            raise PolicyMismatch(f"{self.where}: missing {', '.join(missing)}; get the whole checkpoint")
        return names

    def _open(self, name: str) -> Any:
        try:
            import safetensors
        except ImportError as error:
            raise ImportError(
                f"safetensors are read by their library (pip install 'cel-jax[planner]'): {error}"
            ) from error
        try:
            return safetensors.safe_open(self._folder / name, framework="numpy")
        except (safetensors.SafetensorError, OSError) as error:
            raise PolicyMismatch(f"{self._folder / name}: cut off or no safetensors ({error}); get it anew") from error

    def _check_index(self) -> None:
        wrong = [name for name, file in self._index().items() if self._file_of.get(name) != file]
        if wrong:
            raise PolicyMismatch(
                f"{self.where}: the index promises tensors that its shards do not hold: {', '.join(wrong[:8])}"
            )
