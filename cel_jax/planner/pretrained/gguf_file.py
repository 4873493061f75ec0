"""GGUF files as llama.cpp writes them, quantised or not: metadata, and tensors in floating point."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cel_jax.planner.policy import PolicyMismatch

MAGIC = b"GGUF"


class GgufFile:
    """A `TensorSource`, and the metadata. Raises PolicyMismatch for a file that is cut off or none."""

    def __init__(self, path: str | pathlib.Path) -> None:
        self._path = pathlib.Path(path)
        self.where = str(path)
        reader = self._reader()
        self.metadata: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {str(tensor.name): tensor for tensor in reader.tensors}
        self._permuted = self._permuted_heads()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """GGUF names the fastest axis first."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """float32, dequantised, with rows of queries and keys in the published order."""
        import gguf

        tensor = self._tensors[name]
        try:
            found = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise PolicyMismatch(
                f"{self.where}: {name} is stored as {tensor.tensor_type.name}, which cannot be read ({error})"
            ) from error
        found = np.asarray(found, np.float32).reshape(self.shapes()[name])
        heads = self._permuted.get(name.rsplit(".", 2)[-2])
        return found if heads is None else halves_split(found, heads)

    def _reader(self) -> Any:
        try:
            import gguf
        except ImportError as error:
            raise ImportError(f"GGUF is read by its library (pip install 'cel-jax[planner]'): {error}") from error
        with open(self._path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise PolicyMismatch(f"{self.where}: no GGUF file")
        try:
            return gguf.GGUFReader(self._path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise PolicyMismatch(f"{self.where}: cut off or broken ({error}); get the file anew") from error

    def _permuted_heads(self) -> dict[str, int]:
        """Matrix -> heads, for those whose rows llama.cpp reorders: it rotates neighbouring pairs for `llama`."""
        if self.metadata.get("general.architecture") != "llama":
            return {}
        heads = self.metadata.get("llama.attention.head_count", 1)
        return {"attn_q": heads, "attn_k": self.metadata.get("llama.attention.head_count_kv", heads)}


def halves_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * H, D] in neighbouring rotary pairs -> each head's rotary halves one after the other."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
