"""A checkpoint, ours or openpi's, as a policy that serves."""

from __future__ import annotations

import dataclasses
import pathlib

from cel_jax.config import PolicyConfig
from cel_jax.data.episode import Features
from cel_jax.data.normalize import NormStats
from cel_jax.models.params_io import check_finite, load_openpi_stats, on_one_device, restore_openpi, stored_names
from cel_jax.models.policy import Policy, serving_dtype
from cel_jax.models.presets import Pi0Config, make_config
from cel_jax.models.saving import MANIFEST, load_policy
from cel_jax.workers.serving.observations import LAYOUTS, Layout, default_layout, robot_features


class CheckpointError(ValueError):
    """A checkpoint that cannot be served as asked; the message says what to give."""


def load(
    path: str | pathlib.Path, robot: str, asset_id: str, settings: PolicyConfig, dtype: str | None = None
) -> tuple[Policy, Layout]:
    """robot: a key of LAYOUTS, needed for openpi's checkpoints; settings: their tokenizer, horizon and flow steps."""
    path = pathlib.Path(path)
    if (path / MANIFEST).exists():
        policy = load_policy(path, dtype)
        return policy, LAYOUTS.get(robot) or default_layout(policy.features)
    if robot not in LAYOUTS:
        raise CheckpointError(f"{path}: openpi's checkpoint does not say its robot; give --robot, of {sorted(LAYOUTS)}")
    if not settings.tokenizer:
        raise CheckpointError(f"{path}: openpi's prompts need PaliGemma's tokenizer; give --tokenizer=FILE")
    preset = "pi0" if "state_proj/kernel" in stored_names(path) else "pi05"
    features = robot_features(robot, 224)
    config = serving_dtype(make_config(preset, features, settings), dtype)
    return openpi_policy(path, config, features, asset_id, settings), LAYOUTS[robot]


def openpi_policy(
    path: pathlib.Path, config: Pi0Config, features: Features, asset_id: str, settings: PolicyConfig
) -> Policy:
    """Weights go straight to the device, in the network's dtype; statistics are the checkpoint's own."""
    stats = _cut(load_openpi_stats(_asset(path, asset_id), quantiles=config.pi05), features)
    params = restore_openpi(path, config, config.dtype, on_one_device(config))
    check_finite(params, str(path))
    return Policy(config, params, stats, features, settings)


def _asset(path: pathlib.Path, asset_id: str) -> pathlib.Path:
    """The folder of norm_stats.json; the only one if none is named."""
    root = path / "assets"
    found = {str(file.parent.relative_to(root)): file.parent for file in sorted(root.rglob("norm_stats.json"))}
    if asset_id in found:
        return found[asset_id]
    if asset_id or len(found) != 1:
        raise CheckpointError(f"{root}: statistics {asset_id!r} not found; give --asset_id, of {sorted(found)}")
    return next(iter(found.values()))


def _cut(stats: NormStats, features: Features) -> NormStats:
    """openpi cuts longer statistics to the robot; shorter ones are an error here, not a silent identity."""
    widths = {"state": features.state_dim, "action": features.action_dim}
    changed = {}
    for part, width in widths.items():
        for name in ("mean", "std"):
            value = getattr(stats, f"{part}_{name}")
            if value.shape[-1] < width:
                raise CheckpointError(
                    f"{part} statistics have {value.shape[-1]} numbers, robot {features.robot_type} has {width}"
                )
            changed[f"{part}_{name}"] = value[..., :width]
    return dataclasses.replace(stats, **changed)
