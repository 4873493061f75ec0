"""The last published policy: the folder that outlives the learner."""

from __future__ import annotations

from typing import Any

from cel_jax.models.policy import Policy
from cel_jax.models.presets import Pi0Config
from cel_jax.models.saving import load_policy, save_policy
from cel_jax.recovery import rundb
from cel_jax.workers.published_version import published_version, set_published_version
from cel_jax.workers.wiring import Wiring


def keep_published(wiring: Wiring, policy: Policy, network: Pi0Config, params: Any, version: int) -> None:
    """Writes runs/<name>/policy, then its version: a reader finds the version at most one behind, never ahead.

    The statistics that the policy was trained with go into the same folder.
    """
    save_policy(
        wiring.policy_folder, network, params, policy.norm_stats, policy.features, policy.policy_config, network.dtype
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
