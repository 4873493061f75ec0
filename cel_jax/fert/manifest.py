"""What a checkpoint says about itself: every leaf, whose run it is, and which files belong to it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

FILE = "manifest.json"
FORMAT = 1
Leaves = dict[str, tuple[tuple[int, ...], str]]


class CheckpointMismatch(ValueError):
    """The checkpoint is not one of this run, model or configuration; the message names what differs."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """Whose checkpoint it is."""

    run_id: str
    model: str
    config_hash: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """leaves: path -> (shape, dtype). extras: json with arrays replaced by references. files: name -> sha256."""

    identity: Identity
    step: int
    policy_version: int
    leaves: Leaves
    extras: dict[str, Any]
    files: dict[str, str]


def named_leaves(tree: Any) -> dict[str, Any]:
    """Path -> leaf, paths as params/layer/kernel."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}


def describe(leaves: Mapping[str, Any]) -> Leaves:
    return {name: (tuple(leaf.shape), str(leaf.dtype)) for name, leaf in leaves.items()}


def check_identity(found: Identity, expected: Identity, where: str, allow_changed_config: bool = False) -> None:
    """Raises CheckpointMismatch naming the first of run, model and configuration that differs."""
    if found.run_id != expected.run_id:
        raise CheckpointMismatch(f"{where} belongs to run {found.run_id!r}, this is run {expected.run_id!r}")
    if found.model != expected.model:
        raise CheckpointMismatch(f"{where} holds model {found.model!r}, this run trains {expected.model!r}")
    if found.config_hash != expected.config_hash and not allow_changed_config:
        raise CheckpointMismatch(
            f"{where} was written under configuration {found.config_hash}, this run has {expected.config_hash}; "
            "see config.json for the difference and resume explicitly if it is meant"
        )


def check_leaves(found: Leaves, expected: Leaves, where: str) -> None:
    """Raises CheckpointMismatch naming every missing, surplus or misshapen leaf (the first eight of each)."""
    shared = sorted(found.keys() & expected.keys())
    wrong = [f"{name}: {found[name]} in the file, {expected[name]} expected" for name in shared
             if found[name] != expected[name]]  # fmt: skip
    problems = {
        "missing": sorted(expected.keys() - found.keys()),
        "surplus": sorted(found.keys() - expected.keys()),
        "another shape or dtype": wrong,
    }
    text = "; ".join(f"{kind} {len(names)}: {', '.join(names[:8])}" for kind, names in problems.items() if names)
    if text:
        raise CheckpointMismatch(f"{where} does not fit this model's state: {text}")


def split_arrays(value: Any, path: str = "") -> tuple[Any, dict[str, np.ndarray]]:
    """(value with arrays replaced by {"__array__": key}, key -> array), for nested dicts, lists and arrays."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return {"__array__": path}, {path: np.array(value)}
    if isinstance(value, Mapping):
        parts = {str(key): split_arrays(item, f"{path}/{key}") for key, item in value.items()}
        return {key: part for key, (part, _) in parts.items()}, _joined(arrays for _, arrays in parts.values())
    if isinstance(value, (list, tuple)):
        items = [split_arrays(item, f"{path}/{index}") for index, item in enumerate(value)]
        return [part for part, _ in items], _joined(arrays for _, arrays in items)
    return value, {}


def _joined(parts: Any) -> dict[str, np.ndarray]:
    return {key: array for arrays in parts for key, array in arrays.items()}


def join_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `split_arrays` (tuples come back as lists)."""
    if isinstance(value, Mapping):
        if set(value) == {"__array__"}:
            return arrays[value["__array__"]]
        return {key: join_arrays(item, arrays) for key, item in value.items()}
    return [join_arrays(item, arrays) for item in value] if isinstance(value, list) else value


def write(folder: pathlib.Path, manifest: Manifest) -> None:
    """Write and sync the manifest: the last file of a checkpoint."""
    with open(folder / FILE, "w") as file:
        json.dump({"format": FORMAT} | dataclasses.asdict(manifest), file)
        file.flush()
        os.fsync(file.fileno())


def read(folder: pathlib.Path) -> Manifest:
    """Raises CheckpointMismatch for another format or a damaged file."""
    try:
        values = json.loads((folder / FILE).read_text())
        if values.pop("format") != FORMAT:
            raise CheckpointMismatch(f"{folder.name}: unknown checkpoint format, expected {FORMAT}")
        leaves = {name: (tuple(shape), dtype) for name, (shape, dtype) in values.pop("leaves").items()}
        return Manifest(identity=Identity(**values.pop("identity")), leaves=leaves, **values)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise CheckpointMismatch(f"{folder.name}: its manifest is damaged ({error!r})") from error


def digest(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
