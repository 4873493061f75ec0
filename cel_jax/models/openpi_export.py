"""Writes what openpi's own `restore_params` and policy server read: `params/` and `assets/<id>/norm_stats.json`."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from cel_jax.data.normalize import NormStats
from cel_jax.models.params_io import check_tree, flatten
from cel_jax.models.pi0 import Params
from cel_jax.models.presets import Pi0Config

CHUNK_BYTES = 2**28  # a reader that wants a shard decodes chunks, not the whole leaf


class ExportError(ValueError):
    """A policy that openpi cannot hold; the message says why."""


def export_openpi(
    folder: str | pathlib.Path,
    config: Pi0Config,
    params: Params,
    stats: NormStats,
    asset_id: str,
    dtype: str = "float32",
    overwrite: bool = False,
) -> None:
    """Written beside, then renamed. Leaves end in nnx's `value`, as openpi's training writes them.

    asset_id: as openpi's configuration names the robot (`trossen`, `droid`, ...); it may contain "/".
    Raises ExportError for a network openpi does not have or a folder that holds something, ValueError for a leaf.
    """
    folder = pathlib.Path(folder).absolute()
    _check(config, folder, asset_id, overwrite)
    check_tree(flatten(params), config, f"export to {folder}")
    new = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(new, ignore_errors=True)
    _write_params(new / "params", params, dtype)
    assets = new / "assets" / asset_id
    assets.mkdir(parents=True)
    (assets / "norm_stats.json").write_text(json.dumps({"norm_stats": _entries(stats, config)}, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _check(config: Pi0Config, folder: pathlib.Path, asset_id: str, overwrite: bool) -> None:
    if config.objects_shape is not None:
        raise ExportError("this policy reads object poses; openpi's networks read images only")
    if config.actions_per_token != 1:
        raise ExportError(f"actions_per_token is {config.actions_per_token}; openpi has one action in a token")
    if pathlib.PurePosixPath(asset_id).is_absolute() or ".." in asset_id.split("/") or not asset_id:
        raise ExportError(f"asset id {asset_id!r}: expected a relative name such as `trossen`")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise ExportError(f"{folder} is not empty; give --overwrite, or --out=ANOTHER_FOLDER")


def _write_params(folder: pathlib.Path, params: Params, dtype: str) -> None:
    import orbax.checkpoint as ocp

    tree = {"params": jax.tree.map(lambda leaf: {"value": leaf.astype(np.dtype(dtype))}, params)}
    args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES), tree)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, tree, save_args=args)


def _entries(stats: NormStats, config: Pi0Config) -> dict[str, Any]:
    parts = {"state": (stats.state_mean, stats.state_std), "actions": (stats.action_mean, stats.action_std)}
    return {name: _entry(mean, std, config.pi05) for name, (mean, std) in parts.items()}


def _entry(mean: np.ndarray, std: np.ndarray, quantiles: bool) -> dict[str, Any]:
    """pi0.5 normalises by quantiles: those that give the same numbers are mean - std and mean + std."""
    low, high = (mean - std, mean + std) if quantiles else (None, None)
    plain = {"mean": mean, "std": std, "q01": low, "q99": high}
    return {name: None if value is None else value.tolist() for name, value in plain.items()}
