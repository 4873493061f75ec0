"""Parameters in and out: openpi's orbax checkpoints, and trees checked leaf by leaf."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.data.normalize import NormStats, load_openpi
from cel_jax.models.pi0 import Params, param_shapes
from cel_jax.models.presets import Pi0Config

SEPARATOR = "/"


def flatten(params: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries -> {'PaliGemma/llm/...': leaf}."""
    return flax.traverse_util.flatten_dict(params, sep=SEPARATOR)


def unflatten(flat: Mapping[str, Any]) -> Params:
    """The inverse of `flatten`."""
    return flax.traverse_util.unflatten_dict(dict(flat), sep=SEPARATOR)


def check_tree(flat: Mapping[str, Any], config: Pi0Config, where: str) -> None:
    """Raises ValueError naming every missing, surplus and misshapen leaf of {path: array}."""
    expected = flatten(param_shapes(config))
    faults = [f"missing {name} {expected[name].shape}" for name in sorted(set(expected) - set(flat))]
    faults += [f"surplus {name} {tuple(flat[name].shape)}" for name in sorted(set(flat) - set(expected))]
    for name in sorted(set(flat) & set(expected)):
        if tuple(flat[name].shape) != expected[name].shape:
            faults.append(f"misshapen {name}: expected {expected[name].shape}, got {tuple(flat[name].shape)}")
    if faults:
        raise ValueError(f"{where}: {len(faults)} leaves do not fit the configuration: " + "; ".join(faults[:20]))


def check_finite(params: Params, where: str) -> None:
    """Raises ValueError naming the leaves that hold NaN or infinity."""
    bad = [name for name, leaf in flatten(params).items() if not bool(_all_finite(leaf))]
    if bad:
        raise ValueError(f"{where}: {len(bad)} leaves are not finite: {', '.join(bad[:8])}; take an older checkpoint")


@jax.jit
def _all_finite(leaf: Any) -> jax.Array:
    return jnp.isfinite(leaf).all()


def add_lora(params: Params, config: Pi0Config, seed: int = 0) -> Params:
    """A plain checkpoint's leaves and fresh low-rank factors, normal(0.01) as openpi starts both of them.

    Raises ValueError naming a leaf that is missing, surplus or misshapen; factors that are there are kept.
    """
    flat, rng = flatten(params), np.random.default_rng(seed)
    for name, leaf in flatten(param_shapes(config)).items():
        if "lora" in name and name not in flat:
            flat[name] = rng.normal(0, 0.01, leaf.shape).astype(np.float32)
    check_tree(flat, config, "LoRA")
    return unflatten(flat)


def cast(params: Params, dtype: Any) -> Params:
    """Every leaf in `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def restore_openpi(
    path: str | pathlib.Path, config: Pi0Config, dtype: str = "float32", shardings: Params | None = None
) -> Params:
    """The leaves of openpi's `params` item, with or without the trailing `value`, cast to `dtype`.

    path: the folder `<checkpoint>/params`, the checkpoint that holds it, or a training checkpoint's `train_state` (its
    raw weights). shardings: a tree like the parameters; leaves then go block by block straight to their devices, and
    the host holds a few hundred megabytes at a time. None: numpy leaves. Raises FileNotFoundError where there is
    nothing, ValueError naming every leaf that does not fit, before anything is read, or the leaf that cannot be read.
    """
    folder = _item_folder(pathlib.Path(path))
    stored = _metadata(folder)
    check_tree({name: leaf for name, (leaf, _) in stored.items()}, config, str(folder))
    places = dict.fromkeys(stored) if shardings is None else flatten(shardings)
    return unflatten({name: _read(folder, key, dtype, places[name]) for name, (_, key) in stored.items()})


def on_one_device(config: Pi0Config) -> Params:
    """`shardings` for `restore_openpi`: every leaf whole on this process's first device."""
    place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda _: place, param_shapes(config))


def _read(folder: pathlib.Path, key: str, dtype: str, sharding: Any | None) -> Any:
    from cel_jax.models.sliced_restore import read_leaf

    try:
        return read_leaf(folder, f"params.{key.replace(SEPARATOR, '.')}", np.dtype(dtype), sharding)
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder}: leaf {key} cannot be read, copy the checkpoint anew: {error}") from error


def _metadata(folder: pathlib.Path) -> dict[str, tuple[Any, str]]:
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        found = checkpointer.metadata(folder).item_metadata
    if found is None:
        raise ValueError(f"{folder}: its metadata cannot be read, copy the checkpoint anew")
    return _stored_leaves(folder, found.tree)


def _stored_leaves(folder: pathlib.Path, tree: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Parameter's path -> (its metadata, its path in the file). nnx's last key `value` goes if every path has it."""
    if not tree.get("params"):
        raise ValueError(f"{folder}: expected a tree under `params`, found {sorted(tree)}; is this openpi's?")
    flat, tail = flatten(tree["params"]), f"{SEPARATOR}value"
    cut = len(tail) if all(name.endswith(tail) for name in flat) else 0
    return {name[: len(name) - cut]: (leaf, name) for name, leaf in flat.items()}


def stored_names(path: str | pathlib.Path) -> list[str]:
    """The parameters of openpi's checkpoint, without reading them: `state_proj/kernel` tells pi0 from pi0.5."""
    return sorted(_metadata(_item_folder(pathlib.Path(path))))


def _item_folder(path: pathlib.Path) -> pathlib.Path:
    for folder in (path, path / "params"):
        if (folder / "_METADATA").exists():
            return folder.resolve()
    raise FileNotFoundError(f"{path}: no orbax item (`_METADATA`) here or in its `params`; give openpi's checkpoint")


def load_openpi_stats(path: str | pathlib.Path, quantiles: bool = False) -> NormStats:
    """openpi's norm_stats.json (file or folder). quantiles: pi0.5's scheme, as an equivalent mean and deviation.

    (x - q01) / (q99 - q01) * 2 - 1 equals (x - m) / s with m the middle and s half of the distance.
    """
    if not quantiles:
        return load_openpi(path)
    path = pathlib.Path(path)
    entries = json.loads((path / "norm_stats.json" if path.is_dir() else path).read_text())["norm_stats"]
    state, action = (_from_quantiles(entries[key], f"{path}: {key}") for key in ("state", "actions"))
    return NormStats(*state, *action)


def _from_quantiles(entry: Mapping[str, Any], where: str) -> tuple[np.ndarray, np.ndarray]:
    if entry.get("q01") is None or entry.get("q99") is None:
        raise ValueError(f"{where}: q01 and q99 are missing; compute them, or use z-scores")
    low, high = np.asarray(entry["q01"], np.float32), np.asarray(entry["q99"], np.float32)
    return (low + high) / 2, (high - low) / 2
