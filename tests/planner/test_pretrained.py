"""Published checkpoints: the reference's logits, the same weights from every format, and faults by name."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import gguf
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from cel_jax.planner import decoder, policy
from cel_jax.planner.decoder import DecoderConfig, Params
from cel_jax.planner.policy import PolicyMismatch
from cel_jax.planner.pretrained.architecture import from_config_json
from cel_jax.planner.pretrained.leaves import read_params
from cel_jax.planner.pretrained.load import load_pretrained
from cel_jax.planner.pretrained.safetensors_files import SafetensorsFiles
from tests.planner.checkpoints import (
    FIXTURES,
    config_json,
    random_params,
    small_config,
    small_folder,
    stored,
    tokenizer_json,
    unlike,
    write_folder,
    write_gguf,
)

Q = gguf.GGMLQuantizationType


def logits_of(params: Params, config: DecoderConfig, tokens: np.ndarray) -> np.ndarray:
    position, mask = decoder.causal_layout(jnp.ones(tokens.shape, bool))
    model = decoder.Decoder(config)
    x, _ = model.apply({"params": params}, jnp.asarray(tokens, jnp.int32), position, mask, None, jnp.int32(0))
    return np.asarray(decoder.output_logits(params, x))


def same(ours: Params, theirs: Params, atol: float = 0.0) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=atol, rtol=0)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_qwen3"])
def test_logits_are_those_of_the_reference(name: str) -> None:
    config = from_config_json(json.loads((FIXTURES / name / "config.json").read_text()), name)
    params = read_params(SafetensorsFiles(FIXTURES / name), config, lambda leaf: leaf.safetensors, "float32")
    with np.load(FIXTURES / name / "logits.npz") as reference:
        found = logits_of(params, config, reference["tokens"])
        np.testing.assert_allclose(found, reference["logits"], atol=1e-4)


@pytest.mark.parametrize("qk_norm,tied", [(False, True), (True, False)])
def test_a_folder_and_a_gguf_file_give_the_same_planner(tmp_path: pathlib.Path, qk_norm: bool, tied: bool) -> None:
    config = small_config(qk_norm, tied=tied)
    params = random_params(config)
    folder = load_pretrained(write_folder(tmp_path / "hf", config, params, tokenizer_json()))
    file = load_pretrained(write_gguf(tmp_path / "model.gguf", config, params, tokenizer_json()))
    assert folder.config == config
    assert unlike(file.config, norm_eps=0.0) == unlike(config, norm_eps=0.0)
    assert file.config.norm_eps == pytest.approx(config.norm_eps, rel=1e-6), "GGUF keeps it in float32"
    same(folder.params, params)
    same(file.params, params)
    assert folder.model_name == file.model_name


@pytest.mark.parametrize("kind,atol", [(Q.F16, 2e-3), (Q.BF16, 2e-2), (Q.Q8_0, 1e-2), (Q.Q4_1, 0.2), (Q.Q4_0, 0.3)])
def test_quantised_gguf_is_near(tmp_path: pathlib.Path, kind: gguf.GGMLQuantizationType, atol: float) -> None:
    config = small_config(qk_norm=False)
    params = random_params(config)
    found = load_pretrained(write_gguf(tmp_path / "model.gguf", config, params, tokenizer_json(), kind))
    same(found.params, params, atol)
    worst = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (found.params, params)), strict=True))
    assert worst > 0, "quantising loses something: or else the file was not quantised"


@pytest.mark.parametrize("dtype,atol", [(ml_dtypes.bfloat16, 2e-2), (np.float16, 2e-3), (np.float64, 1e-7)])
def test_stored_numbers_are_cast(tmp_path: pathlib.Path, dtype: type, atol: float) -> None:
    config, folder = small_config(True), small_folder(tmp_path, qk_norm=True)
    tensors = {name: t.astype(dtype) for name, t in stored(random_params(config), "safetensors").items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    found = load_pretrained(folder)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.params)} == {np.dtype(np.float32)}
    same(found.params, random_params(config), atol)
    assert load_pretrained(folder, "bfloat16").params["embedding"].dtype == ml_dtypes.bfloat16


def shards(folder: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """Two files and their index."""
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, chosen in parts.items():
        safetensors.numpy.save_file({name: tensors[name] for name in chosen}, folder / file)
    index = {"weight_map": {name: file for file, chosen in parts.items() for name in chosen}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink(missing_ok=True)


def test_shards_are_read_and_a_lost_one_is_named(tmp_path: pathlib.Path) -> None:
    folder, params = small_folder(tmp_path), random_params(small_config(False))
    shards(folder, stored(params, "safetensors"))
    same(load_pretrained(folder).params, params)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    moved = dict.fromkeys(index["weight_map"], "a.safetensors") | {"model.norm.weight": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(PolicyMismatch, match="the index promises"):
        load_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "b.safetensors").unlink()
    with pytest.raises(PolicyMismatch, match=r"missing b\.safetensors"):
        load_pretrained(folder)


Tensors = dict[str, np.ndarray]
Q_PROJ, NORM, UP = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight", "model.layers.2.mlp.up_proj.weight"


def put(name: str, values: np.ndarray) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: values})


FAULTS: list[tuple[str, Callable[[Tensors], object]]] = [
    (f"missing {NORM}", lambda tensors: tensors.pop(NORM)),
    (rf"surplus {UP} \(3, 4\)", put(UP, np.ones((3, 4), np.float32))),
    (rf"misshapen {Q_PROJ}: expected \(64, 64\), got \(64, 32\)", put(Q_PROJ, np.ones((64, 32), np.float32))),
    (f"{Q_PROJ} is stored as I8", put(Q_PROJ, np.ones((64, 64), np.int8))),
    (f"{NORM} is not finite", put(NORM, np.full(64, np.nan, np.float32))),
    (r"lm_head\.weight differs", put("lm_head.weight", np.ones((384, 64), np.float32))),
]


@pytest.mark.parametrize("message,change", FAULTS, ids=[message[:24] for message, _ in FAULTS])
def test_a_faulty_tensor_is_named(tmp_path: pathlib.Path, message: str, change: Callable[[Tensors], object]) -> None:
    folder = small_folder(tmp_path)
    tensors = stored(random_params(small_config(False)), "safetensors")
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(PolicyMismatch, match=message):
        load_pretrained(folder)


def test_tied_embeddings_may_be_stored_twice(tmp_path: pathlib.Path) -> None:
    folder = small_folder(tmp_path)
    tensors = stored(random_params(small_config(False)), "safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    assert "head" not in load_pretrained(folder).params


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"model_type": "gemma3"}, "architecture 'gemma3'; the planner's decoder is one of"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "has no rope_scaling="),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "has no rope_scaling="),
        ({"attention_bias": True}, "has no attention_bias=True"),
        ({"use_sliding_window": True}, "has no use_sliding_window=True"),
        ({"hidden_act": "gelu"}, "has no hidden_act=gelu"),
        ({"quantization_config": {"bits": 4}}, "has no quantization_config="),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
    ],
)
def test_what_the_decoder_does_not_have_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyMismatch, match=message):
        from_config_json(config_json(small_config(True)) | changed, "here")


def test_a_qwen3_config_of_few_words() -> None:
    described = config_json(small_config(True))
    del described["head_dim"], described["num_key_value_heads"]
    config = from_config_json(described, "here")
    assert (config.head_dim, config.kv_heads) == (128, 4)


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"general__architecture": "gemma"}, "architecture 'gemma'"),
        ({"llama__rope__scaling__type": "yarn"}, r"has no llama\.rope\.scaling\.type=yarn"),
        ({"llama__rope__dimension_count": 8}, r"has no llama\.rope\.dimension_count=8"),
        ({"llama__expert_count": 4}, r"has no llama\.expert_count=4"),
        ({"llama__context_length": None}, r"llama\.context_length is missing"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer 'llama'; expected a byte-level one"),
        ({"tokenizer__ggml__pre": "chameleon"}, "pre-tokenizer 'chameleon'; known are"),
        ({"tokenizer__ggml__tokens": ["a", "b"]}, "vocabulary and merges do not fit"),
    ],
)
def test_a_gguf_of_another_kind_is_refused(tmp_path: pathlib.Path, changed: dict[str, object], message: str) -> None:
    config = small_config(False)
    path = write_gguf(tmp_path / "model.gguf", config, random_params(config), tokenizer_json(), **changed)
    with pytest.raises(PolicyMismatch, match=message):
        load_pretrained(path)


def test_files_that_are_cut_off_are_named(tmp_path: pathlib.Path) -> None:
    config = small_config(False)
    folder = small_folder(tmp_path / "hf")
    path = write_gguf(tmp_path / "model.gguf", config, random_params(config), tokenizer_json())
    whole = {file: file.read_bytes() for file in (path, folder / "model.safetensors")}
    for file, content in whole.items():
        for share in (0.0, 0.0001, 0.02, 0.3, 0.9, 0.9999):
            file.write_bytes(content[: int(share * len(content))])
            with pytest.raises(PolicyMismatch, match=r"cut off|no GGUF"):
                load_pretrained(path if file == path else folder)


def test_paths_without_a_checkpoint_are_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        load_pretrained(tmp_path / "nothing")
    with pytest.raises(PolicyMismatch, match=r"missing config\.json"):
        load_pretrained(tmp_path)
    folder = small_folder(tmp_path / "hf")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PolicyMismatch, match=r"missing tokenizer\.json"):
        load_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "config.json").write_text(json.dumps(config_json(unlike(small_config(False), vocab_size=300))))
    with pytest.raises(PolicyMismatch, match="another model's tokenizer"):
        load_pretrained(folder)
    monkeypatch.setenv("CEL_SMOLLM2", str(tmp_path / "gone.gguf"))
    with pytest.raises(FileNotFoundError, match=r"gone\.gguf"):
        load_pretrained("smollm2")


def test_a_loaded_planner_is_saved_and_comes_back(tmp_path: pathlib.Path) -> None:
    planner = load_pretrained(small_folder(tmp_path / "hf"))
    policy.save(tmp_path / "ours", planner)
    found = policy.load(tmp_path / "ours")
    same(found.params, planner.params)
    assert (found.config, found.model_name) == (planner.config, planner.model_name)
    assert found.template.prompt_ids([{"role": "user", "content": "pick"}]) == planner.template.prompt_ids(
        [{"role": "user", "content": "pick"}]
    )
    (tmp_path / "ours" / "tokenizer.json").write_text(tokenizer_json(380))
    with pytest.raises(PolicyMismatch, match="trained with tokenizer byte-pairs-"):
        policy.load(tmp_path / "ours")
    (tmp_path / "ours" / "tokenizer.json").unlink()
    with pytest.raises(PolicyMismatch, match=r"tokenizer\.json is missing"):
        policy.load(tmp_path / "ours")
