"""Small checkpoints in the published formats, written by the formats' own libraries."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import flax.traverse_util
import gguf
import jax
import numpy as np
import safetensors.numpy
import tokenizers

from cel_jax.planner import decoder
from cel_jax.planner.decoder import DecoderConfig, Params
from cel_jax.planner.pretrained.leaves import LEAVES

FIXTURES = pathlib.Path(__file__).with_name("fixtures")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "<tool_call>", "</tool_call>")
CORPUS = (
    "Pack the case, the adapter, the manual, the cable and put the lid on the tray. Box straight; box turned.",
    "Tools, one a line. The right arm holds the cable. It's 12 or 345 parts: naïve, 北京!",
    'name arguments part arm grasp spot pick place straighten done "pick" "cable" left right flat standing',
)


def tokenizer_json(vocab_size: int = 384, corpus: tuple[str, ...] = CORPUS) -> str:
    """A byte-level tokenizer as SmolLM2's is built, trained on a few lines."""
    splits = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    levels = [splits.Digits(individual_digits=True), splits.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = splits.Sequence(levels)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIALS), initial_alphabet=splits.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(corpus * 3, trainer)
    return str(tokenizer.to_str())


def small_config(qk_norm: bool, vocab_size: int = 384, tied: bool = True) -> DecoderConfig:
    """Sizes that quantised blocks of 32 numbers divide."""
    return DecoderConfig(
        vocab_size, 64, 2, 4, 2, 32 if qk_norm else 16, 96, rope_base=1e5, qk_norm=qk_norm, tied=tied,
        context_tokens=512,
    )  # fmt: skip


def random_params(config: DecoderConfig) -> Params:
    """Norms' scales differ from 1 as well."""
    rng = np.random.default_rng(5)
    flat = flax.traverse_util.flatten_dict(decoder.init_params(config, jax.random.key(0)), sep="/")
    numbers = {n: np.asarray(p) * (rng.uniform(0.5, 1.5, p.shape) if "norm" in n else 1.5) for n, p in flat.items()}
    return flax.traverse_util.unflatten_dict({n: p.astype(np.float32) for n, p in numbers.items()}, sep="/")


def stored(params: Params, naming: str) -> dict[str, np.ndarray]:
    """Tensors as files hold them; naming: `safetensors` or `gguf`."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    tensors: dict[str, np.ndarray] = {}
    for leaf in LEAVES:
        if leaf.ours not in flat:
            continue
        values, name = np.asarray(flat[leaf.ours]), getattr(leaf, naming)
        for layer, part in enumerate(values) if leaf.ours.startswith("layers/") else ((None, values),):
            tensors[name.format(layer=layer)] = _matrix(leaf.ours, part) if leaf.transposed else part
    return tensors


def _matrix(name: str, part: np.ndarray) -> np.ndarray:
    """[out, in], heads and head_dim as one axis."""
    flat = part.reshape(-1, part.shape[-1]) if name == "layers/o" else part.reshape(part.shape[0], -1)
    return np.ascontiguousarray(flat.T)


def config_json(config: DecoderConfig) -> dict[str, Any]:
    return {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "vocab_size": config.vocab_size, "hidden_size": config.width, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width, "rope_theta": config.rope_base, "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied, "max_position_embeddings": config.context_tokens, "hidden_act": "silu",
    }  # fmt: skip


def write_folder(folder: pathlib.Path, config: DecoderConfig, params: Params, tokenizer: str) -> pathlib.Path:
    """config.json, tokenizer.json, model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(config)))
    (folder / "tokenizer.json").write_text(tokenizer)
    safetensors.numpy.save_file(stored(params, "safetensors"), folder / "model.safetensors")
    return folder


def small_folder(folder: pathlib.Path, qk_norm: bool = False, tied: bool = True) -> pathlib.Path:
    """A whole checkpoint with random weights."""
    config = small_config(qk_norm, tied=tied)
    return write_folder(folder, config, random_params(config), tokenizer_json())


def write_gguf(
    path: pathlib.Path, config: DecoderConfig, params: Params, tokenizer: str,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32, **changed: Any,
) -> pathlib.Path:  # fmt: skip
    """Matrices quantised to `kind`, norms float32. changed: metadata, `__` for the dot; None leaves the key out."""
    arch = "qwen3" if config.qk_norm else "llama"
    writer = gguf.GGUFWriter(path, changed.pop("general__architecture", arch))
    for key, value in (
        _metadata(arch, config, tokenizer) | {k.replace("__", "."): v for k, v in changed.items()}
    ).items():
        _add(writer, key, value)
    for name, values in stored(params, "gguf").items():
        values = _permuted(name, values, config) if arch == "llama" else values
        as_kind = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(arch: str, config: DecoderConfig, tokenizer: str) -> dict[str, Any]:
    model = json.loads(tokenizer)["model"]
    tokens = sorted(model["vocab"], key=lambda token: model["vocab"][token])
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    sizes = {
        "block_count": config.layers, "embedding_length": config.width, "context_length": config.context_tokens,
        "feed_forward_length": config.mlp_width, "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads, "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim, "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope_base,
    }  # fmt: skip
    return {f"{arch}.{name}": value for name, value in sizes.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif value is not None:
        writer.add_uint32(key, value)


def _permuted(name: str, values: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """llama.cpp's order of the rows of queries and keys: row 2i is from the first half, row 2i + 1 from the second."""
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    half = values.shape[0] // heads // 2
    order = [head * 2 * half + half * (row % 2) + row // 2 for head in range(heads) for row in range(2 * half)]
    return np.ascontiguousarray(values[order])


def unlike(config: DecoderConfig, **changed: Any) -> DecoderConfig:
    """The same sizes but for some."""
    return dataclasses.replace(config, **changed)
