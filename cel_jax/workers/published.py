"""Published policies: as bytes on the bus, and as the folder that outlives the learner."""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np

from cel_jax.models.params_io import check_tree, flatten, unflatten
from cel_jax.models.policy import Policy
from cel_jax.models.presets import Pi0Config
from cel_jax.models.saving import load_policy, save_policy
from cel_jax.recovery import rundb
from cel_jax.workers.published_version import published_version, set_published_version
from cel_jax.workers.wiring import Wiring


def params_to_bytes(params: Any) -> bytes:
    """Parameters as float32, one self-describing block without pickle."""
    file = io.BytesIO()
    flat: dict[str, Any] = {n: np.asarray(leaf, np.float32) for n, leaf in flatten(jax.device_get(params)).items()}
    np.savez(file, **flat)
    return file.getvalue()


def params_from_bytes(data: bytes, config: Pi0Config) -> Any:
    """The inverse. Raises ValueError for a leaf that is missing, surplus or misshapen, naming it."""
    with np.load(io.BytesIO(data), allow_pickle=False) as block:
        flat = {name: block[name] for name in block.files}
    check_tree(flat, config, "published policy")
    return unflatten(flat)


def keep_published(wiring: Wiring, policy: Policy, params: Any, version: int) -> None:
    """Writes runs/<name>/policy, then its version: a reader finds the version at most one behind, never ahead."""
    save_policy(
        wiring.policy_folder, policy.config, params, policy.norm_stats, policy.features, policy.policy_config, "float32"
    )
    db = rundb.open_db(wiring.run_dir)
    try:
        set_published_version(db, version)
    finally:
        db.close()


def current_policy(wiring: Wiring) -> tuple[Policy, int]:
    """The last published policy and its version; the start policy is version 0."""
    db = rundb.open_db(wiring.run_dir)
    try:
        version = published_version(db)
    finally:
        db.close()
    if version and wiring.policy_folder.exists():
        return load_policy(wiring.policy_folder).with_sampling(wiring.config.policy), version
    return load_policy(wiring.start_folder).with_sampling(wiring.config.policy), 0
