"""Every parameter by name: ours, that of published safetensors, and that of GGUF files; and how it is laid out there.

Shape letters as in `decoder`: D width, N heads, K key-value heads, H head_dim, M mlp width, L layers, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import flax.traverse_util
import numpy as np

from cel_jax.planner import decoder
from cel_jax.planner.decoder import DecoderConfig, Params
from cel_jax.planner.policy import PolicyMismatch

FAULTS_SHOWN = 12


class TensorSource(Protocol):
    """Tensors by name. Reading gives the stored values as a numpy array in floating point."""

    @property
    def where(self) -> str: ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One of our leaves. Names of a layer's leaf hold `{layer}`; a stored matrix is [out, in], ours [in, out]."""

    ours: str
    safetensors: str
    gguf: str
    transposed: bool = False


_HF, _GGUF = "model.layers.{layer}.", "blk.{layer}."
LEAVES = (
    Leaf("embedding", "model.embed_tokens.weight", "token_embd.weight"),
    Leaf("final_norm/scale", "model.norm.weight", "output_norm.weight"),
    Leaf("head", "lm_head.weight", "output.weight", transposed=True),
    Leaf("layers/attn_norm/scale", _HF + "input_layernorm.weight", _GGUF + "attn_norm.weight"),
    Leaf("layers/mlp_norm/scale", _HF + "post_attention_layernorm.weight", _GGUF + "ffn_norm.weight"),
    Leaf("layers/q_norm/scale", _HF + "self_attn.q_norm.weight", _GGUF + "attn_q_norm.weight"),
    Leaf("layers/k_norm/scale", _HF + "self_attn.k_norm.weight", _GGUF + "attn_k_norm.weight"),
    Leaf("layers/q", _HF + "self_attn.q_proj.weight", _GGUF + "attn_q.weight", transposed=True),
    Leaf("layers/k", _HF + "self_attn.k_proj.weight", _GGUF + "attn_k.weight", transposed=True),
    Leaf("layers/v", _HF + "self_attn.v_proj.weight", _GGUF + "attn_v.weight", transposed=True),
    Leaf("layers/o", _HF + "self_attn.o_proj.weight", _GGUF + "attn_output.weight", transposed=True),
    Leaf("layers/gate", _HF + "mlp.gate_proj.weight", _GGUF + "ffn_gate.weight", transposed=True),
    Leaf("layers/up", _HF + "mlp.up_proj.weight", _GGUF + "ffn_up.weight", transposed=True),
    Leaf("layers/down", _HF + "mlp.down_proj.weight", _GGUF + "ffn_down.weight", transposed=True),
)
Naming = Callable[[Leaf], str]
HEAD = next(leaf for leaf in LEAVES if leaf.ours == "head")


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Where one stored tensor goes: our leaf, its layer, and the shape that the tensor must have."""

    leaf: Leaf
    layer: int | None
    stored_shape: tuple[int, ...]


def read_params(source: TensorSource, config: DecoderConfig, naming: Naming, dtype: str) -> Params:
    """Our tree with leaves in `dtype`, on the host; beside it never more than one stored tensor.

    Raises PolicyMismatch naming every tensor that is missing, surplus or misshapen, before anything is read, or the
    one that is not finite.
    """
    slots = _slots(config, naming)
    doubled = naming(HEAD) if config.tied and naming(HEAD) in source.shapes() else None
    _check(source, slots, doubled)
    if doubled:
        _check_doubled(source, doubled, naming(LEAVES[0]))
    ours = flax.traverse_util.flatten_dict(decoder.param_shapes(config), sep="/")
    params = {name: np.empty(shape.shape, np.dtype(dtype)) for name, shape in ours.items()}
    for name, slot in slots.items():
        target = params[slot.leaf.ours]
        part = target if slot.layer is None else target[slot.layer]
        part[...] = _read(source, name, slot.leaf.transposed).reshape(part.shape).astype(target.dtype)
    return flax.traverse_util.unflatten_dict(params, sep="/")


def _read(source: TensorSource, name: str, transposed: bool) -> np.ndarray:
    stored = source.read(name)
    if not np.isfinite(stored.astype(np.float32)).all():
        raise PolicyMismatch(f"{source.where}: {name} is not finite; get the checkpoint anew")
    return stored.T if transposed else stored


def _slots(config: DecoderConfig, naming: Naming) -> dict[str, _Slot]:
    """Stored name -> where it goes."""
    ours = flax.traverse_util.flatten_dict(decoder.param_shapes(config), sep="/")
    slots: dict[str, _Slot] = {}
    for leaf in LEAVES:
        if leaf.ours not in ours:
            continue
        shape, stacked = tuple(ours[leaf.ours].shape), leaf.ours.startswith("layers/")
        stored = _stored_shape(leaf, shape[1:] if stacked else shape, config)
        for layer in range(config.layers) if stacked else (None,):
            slots[naming(leaf).format(layer=layer)] = _Slot(leaf, layer, stored)
    return slots


def _stored_shape(leaf: Leaf, shape: tuple[int, ...], config: DecoderConfig) -> tuple[int, ...]:
    """The two-dimensional form of one layer's leaf: heads and head_dim are one axis in files."""
    if not leaf.transposed:
        return shape
    inputs = shape[:-1] if leaf.ours == "layers/o" else shape[:1]
    rows = int(np.prod(inputs))
    return int(np.prod(shape)) // rows, rows


def _check(source: TensorSource, slots: Mapping[str, _Slot], doubled: str | None) -> None:
    found = source.shapes()
    known = {*slots, doubled}
    faults = [f"missing {name}" for name in sorted(set(slots) - set(found))]
    faults += [f"surplus {name} {found[name]}" for name in sorted(set(found) - known)]
    for name in sorted(set(found) & set(slots)):
        if found[name] != slots[name].stored_shape:
            faults.append(f"misshapen {name}: expected {slots[name].stored_shape}, got {found[name]}")
    if faults:
        raise PolicyMismatch(f"{source.where}: {len(faults)} tensors do not fit its configuration: {_listed(faults)}")


def _check_doubled(source: TensorSource, head: str, embedding: str) -> None:
    """Some checkpoints with tied embeddings store them twice; both must be the same."""
    if not np.array_equal(source.read(head), source.read(embedding)):
        raise PolicyMismatch(f"{source.where}: the embeddings are tied, but {head} differs from {embedding}")


def _listed(faults: Sequence[str]) -> str:
    more = len(faults) - FAULTS_SHOWN
    return "; ".join(faults[:FAULTS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
