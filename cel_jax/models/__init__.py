"""pi0 in Flax: `cel_jax.models.load_policy(folder).infer(...)`. Names load on first use, so importing costs nothing."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "inputs": ("ModelInputs",),
    "pi0": ("Pi0", "init_params", "param_shapes", "velocity", "flow_loss", "sample_actions", "vision_tokens"),
    "presets": ("Pi0Config", "GemmaConfig", "SigLIPConfig", "make_config"),
    "policy": ("Policy",),
    "saving": ("save_policy", "load_policy", "read_manifest"),
    "tokenizer": ("make_tokenizer", "tokenize"),
    "params_io": ("restore_openpi", "load_openpi_stats", "check_tree"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"cel_jax.models has no {name!r}; it has {sorted(_HOME_OF)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
