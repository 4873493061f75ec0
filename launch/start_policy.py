"""Finds the start policy of a run: the configuration's, or the one shipped for its task and mode."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cel_jax.config import RunConfig
from cel_jax.data.episode import features_from_dict
from cel_jax.workers import wiring
from launch.options import OptionError

SHIPPED = Path(__file__).resolve().parent.parent / "policies"


def prepare(run_dir: Path, config: RunConfig) -> None:
    """Puts the policy in runs/<name>/init/policy and its robot's features in features.json."""
    folder = run_dir / "init" / "policy"
    if not (folder / "manifest.json").exists():
        _obtain(run_dir, config, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    check_fit(config, manifest, folder)
    wiring.save_features(run_dir, features_from_dict(manifest["features"]))


def _obtain(run_dir: Path, config: RunConfig, folder: Path) -> None:
    source = Path(config.policy.checkpoint) if config.policy.checkpoint else SHIPPED / shipped_name(config)
    if (source / "manifest.json").exists():
        print(f"start policy: {source}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, folder)
        return
    if config.policy.checkpoint and ((source / "params").exists() or (source / "_METADATA").exists()):
        raise OptionError(
            f"--config.policy.checkpoint={source} is openpi's, made for another robot. Fit it to yours with some "
            f"demonstrations first: python -m launch.initialize --config=NAME --config.policy.checkpoint={source} "
            "--config.init.demos=FOLDER --out=FOLDER; a LoRA preset needs the least memory"
        )
    if config.policy.checkpoint:
        raise OptionError(f"--config.policy.checkpoint={source}: no policy there (manifest.json is missing)")
    raise OptionError(
        f"no start policy is shipped for {shipped_name(config)}. Make one: python -m launch.initialize "
        "--config=NAME --out=FOLDER (minutes on a GPU, hours on two cores); give --config.policy.checkpoint=FOLDER then"
    )


def shipped_name(config: RunConfig) -> str:
    """The folder under policies/ that fits a task and its observation mode."""
    return f"{config.task.name}_{config.task.mode}"


def check_fit(config: RunConfig, manifest: dict, folder: Path) -> None:
    """Raises OptionError where a policy was made for other observations or another horizon."""
    sees = "state" if manifest["features"]["objects_shape"] else "images"
    if sees != config.task.mode:
        raise OptionError(f"{folder}: the policy was trained with {sees}, this run has task.mode={config.task.mode}")
    horizon = manifest["config"]["action_horizon"]
    if horizon != config.policy.action_horizon:
        wanted = config.policy.action_horizon
        raise OptionError(f"{folder}: the policy has an action horizon of {horizon}, this run asks for {wanted}")
