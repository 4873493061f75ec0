"""What the forward pass keeps for the backward pass; the rest is computed again."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

POLICIES = {
    "off": "keep everything: most memory, nothing twice",
    "dots": "keep every product with weights",
    "wide": "keep gate and up of the feed-forwards: a tenth of the forward pass twice",
    "gate": "keep gate alone: half of that memory, a third twice",
    "all": "keep layers' inputs alone: least memory, the forward pass twice",
}
KEPT = {"dots": ("gate", "up", "qkv", "mixed", "projected"), "wide": ("gate", "up"), "gate": ("gate",)}


def rematerialised(block: Any, policy: str, tower: bool = False) -> Any:
    """A flax module class for one layer under `policy`, a key of POLICIES (checked by `Pi0Config`).

    tower: SigLIP, a tenth of the values: it keeps all its products unless the policy is `all`.
    """
    if policy == "off":
        return block
    return nn.remat(block, prevent_cse=False, policy=_saveable(policy, tower))


def _saveable(policy: str, tower: bool) -> Any:
    if policy == "all":
        return None
    if tower:
        return jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint_policies.save_only_these_names(*KEPT[policy])
