"""A policy in one folder: manifest.json and params.npz. Written beside, then renamed: never half there.

bfloat16 leaves are stored as their 16-bit patterns, since npz knows no bfloat16.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import jax.numpy as jnp
import numpy as np

from cel_jax.config import PolicyConfig
from cel_jax.data import normalize
from cel_jax.data.episode import Features, features_from_dict
from cel_jax.models.params_io import check_finite, check_tree, flatten, unflatten
from cel_jax.models.pi0 import Params
from cel_jax.models.policy import Policy, serving_dtype
from cel_jax.models.presets import Pi0Config, config_from_dict, config_to_dict

FORMAT = "cel-policy-1"
MANIFEST, PARAMS = "manifest.json", "params.npz"


def save_policy(
    folder: str | pathlib.Path,
    config: Pi0Config,
    params: Params,
    norm_stats: normalize.NormStats,
    features: Features,
    policy_config: PolicyConfig,
    dtype: str = "bfloat16",
) -> None:
    """Writes the folder, replacing an older one. dtype: of the stored weights, `bfloat16` or `float32`."""
    folder = pathlib.Path(folder)
    flat = {name: np.asarray(leaf).astype(_dtype(dtype), copy=False) for name, leaf in flatten(params).items()}
    check_tree(flat, config, f"save_policy to {folder}")
    new = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    _write_params(new / PARAMS, flat)
    manifest = {
        "format": FORMAT,
        "dtype": dtype,
        "config": config_to_dict(config),
        "features": dataclasses.asdict(features),
        "policy": dataclasses.asdict(policy_config),
        "norm_stats": normalize.to_dict(norm_stats),
        "leaves": {name: list(leaf.shape) for name, leaf in flat.items()},
        "sha256": {PARAMS: _sha256(new / PARAMS)},
    }
    _write_synced(new / MANIFEST, json.dumps(manifest, indent=1).encode())
    _replace(new, folder)


def load_policy(folder: str | pathlib.Path, dtype: str | None = None, weights: str | None = None) -> Policy:
    """The policy of `save_policy`. dtype: of computation and weights; None: float32 on CPU, else as configured.

    weights: of the weights alone, where it is another one: a learner's masters are float32 whatever it computes in.

    Raises FileNotFoundError where there is none, ValueError for a damaged file or a leaf that is missing,
    surplus, misshapen or not finite, naming it.
    """
    folder = pathlib.Path(folder)
    manifest = read_manifest(folder)
    flat = _read_params(folder, manifest)
    config = config_from_dict(manifest["config"])
    check_tree(flat, config, str(folder))
    config = serving_dtype(config, dtype)
    stored = _dtype(weights or config.dtype)
    params = unflatten({name: leaf.astype(stored, copy=False) for name, leaf in flat.items()})
    check_finite(params, str(folder))
    stats = normalize.from_dict(manifest["norm_stats"])
    return Policy(config, params, stats, features_from_dict(manifest["features"]), PolicyConfig(**manifest["policy"]))


def read_manifest(folder: str | pathlib.Path) -> dict[str, Any]:
    """The checked manifest, without reading weights."""
    path = pathlib.Path(folder) / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no policy ({MANIFEST} is missing); give a folder of save_policy")
    manifest = json.loads(path.read_text())
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}, got {manifest.get('format')!r}; convert or retrain it")
    return manifest


def _dtype(name: str) -> np.dtype:
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"dtype {name!r}: expected float32 or bfloat16")
    return np.dtype(jnp.bfloat16) if name == "bfloat16" else np.dtype(np.float32)


def _write_params(path: pathlib.Path, flat: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        stored: dict[str, Any] = {
            name: leaf if leaf.dtype == np.float32 else leaf.view(np.uint16) for name, leaf in flat.items()
        }
        np.savez(file, **stored)
        file.flush()
        os.fsync(file.fileno())


def _read_params(folder: pathlib.Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    path, expected = folder / PARAMS, manifest["sha256"][PARAMS]
    if not path.exists() or _sha256(path) != expected:
        raise ValueError(f"{path} is missing or damaged: sha256 {expected[:16]}... expected; copy it anew")
    with np.load(path, allow_pickle=False) as stored:
        flat = {name: stored[name] for name in stored.files}
    if manifest["dtype"] == "bfloat16":
        return {name: leaf.view(_dtype("bfloat16")) for name, leaf in flat.items()}
    return flat


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_synced(path: pathlib.Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(new: pathlib.Path, folder: pathlib.Path) -> None:
    """Renames `new` to `folder`; an older folder moves aside first and is deleted after."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    shutil.rmtree(old, ignore_errors=True)
