"""What kind of decoder a checkpoint holds: config.json or GGUF metadata -> `DecoderConfig`.

A setting that our decoder does not have is refused by name, so that no model is ever computed almost right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cel_jax.planner.decoder import DecoderConfig
from cel_jax.planner.policy import PolicyMismatch

QK_NORM = {"llama": False, "qwen3": True}  # the architectures that are known, and what tells them apart
QWEN3_HEAD_DIM = 128  # where a Qwen3 config.json does not say


def from_config_json(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Raises PolicyMismatch for another architecture, or naming the setting that is missing or not supported."""
    kind = _known(config.get("model_type"), where)
    _refuse_unsupported(config, where)
    need = lambda name: _needed(config, name, where)  # noqa: E731
    heads, width = need("num_attention_heads"), need("hidden_size")
    default_head_dim = QWEN3_HEAD_DIM if kind == "qwen3" else width // heads
    return DecoderConfig(
        vocab_size=need("vocab_size"),
        width=width,
        layers=need("num_hidden_layers"),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or default_head_dim,
        mlp_width=need("intermediate_size"),
        rope_base=float(_rope(config).get("rope_theta", 10_000.0)),
        norm_eps=float(need("rms_norm_eps")),
        qk_norm=QK_NORM[kind],
        tied=bool(config.get("tie_word_embeddings", False)),
        context_tokens=need("max_position_embeddings"),
    )


def from_gguf(metadata: Mapping[str, Any], tied: bool, where: str) -> DecoderConfig:
    """metadata: GGUF's keys and values. Raises as `from_config_json`."""
    kind = _known(metadata.get("general.architecture"), where)
    need = lambda name: _needed(metadata, f"{kind}.{name}", where)  # noqa: E731
    heads, width = need("attention.head_count"), need("embedding_length")
    head_dim = metadata.get(f"{kind}.attention.key_length", width // heads)
    _refuse_unsupported_gguf(metadata, kind, head_dim, where)
    return DecoderConfig(
        vocab_size=len(_needed(metadata, "tokenizer.ggml.tokens", where)),
        width=width,
        layers=need("block_count"),
        heads=heads,
        kv_heads=metadata.get(f"{kind}.attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_width=need("feed_forward_length"),
        rope_base=float(metadata.get(f"{kind}.rope.freq_base", 10_000.0)),
        norm_eps=float(need("attention.layer_norm_rms_epsilon")),
        qk_norm=QK_NORM[kind],
        tied=tied,
        context_tokens=need("context_length"),
    )


def _known(kind: Any, where: str) -> str:
    if kind not in QK_NORM:
        raise PolicyMismatch(f"{where}: architecture {kind!r}; the planner's decoder is one of {sorted(QK_NORM)}")
    return str(kind)


def _needed(settings: Mapping[str, Any], name: str, where: str) -> Any:
    if settings.get(name) is None:
        raise PolicyMismatch(f"{where}: {name} is missing; get the checkpoint anew")
    return settings[name]


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings: a section of their own in newer files."""
    return config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    scaling = config.get("rope_scaling") or _rope(config)
    found = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "quantization_config": config.get("quantization_config") is not None,
        "rope_scaling": (scaling.get("rope_type") or scaling.get("type") or "default") != "default",
    }
    _refuse({name: config.get(name, scaling) for name, bad in found.items() if bad}, where)


def _refuse_unsupported_gguf(metadata: Mapping[str, Any], kind: str, head_dim: int, where: str) -> None:
    expected = {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.scaling.type": "none",
        "expert_count": 0,
    }
    given = {f"{kind}.{name}": (metadata.get(f"{kind}.{name}", value), value) for name, value in expected.items()}
    _refuse({name: found for name, (found, value) in given.items() if found != value}, where)


def _refuse(settings: Mapping[str, Any], where: str) -> None:
    if settings:
        told = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise PolicyMismatch(f"{where}: the planner's decoder has no {told}; take another checkpoint")
