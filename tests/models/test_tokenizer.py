"""Prompts: bytes, PaliGemma's rules, pi0.5's state in the prompt."""

from __future__ import annotations

import dataclasses
import sys
import types

import numpy as np
import pytest

from cel_jax.models import tokenizer as t
from tests.models.robots import tiny


def text(tokens) -> bytes:
    return bytes((tokens - 4).tolist())


def test_the_default_prompt_fills_sixteen_tokens() -> None:
    tokens, mask = t.tokenize(t.make_tokenizer(), tiny(), ["Pack the phone.", "a"])
    assert tokens.shape == (2, 16) and mask[0].all() and mask[1].sum() == 2
    assert text(tokens[0]) == b"Pack the phone.\n"
    assert tokens[1, 2:].tolist() == [0] * 14 and tokens.max() < 260


def test_a_prompt_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs 17 tokens, the policy takes 16"):
        t.tokenize(t.make_tokenizer(), tiny(), ["Pack the phones."])


def test_discretize_as_openpi() -> None:
    state = np.asarray([-1.5, -1.0, -0.9999, 0.0, 0.999, 1.0, 3.0])
    assert t.discretize(state).tolist() == [-1, 0, 0, 128, 255, 255, 255]


def test_the_state_stands_in_pi05s_prompt() -> None:
    config = dataclasses.replace(tiny(pi05=True), discrete_state_input=True, max_token_len=64)
    states = np.asarray([[0.0, -1.0], [0.5, 2.0]], np.float32)
    tokens, mask = t.tokenize(t.make_tokenizer(), config, [" pack_it\n", "go"], states)
    assert text(tokens[0][mask[0]]) == b"Task: pack it, State: 128 0;\nAction: "
    assert text(tokens[1][mask[1]]) == b"Task: go, State: 192 255;\nAction: "
    with pytest.raises(ValueError, match="give 2 states"):
        t.tokenize(t.make_tokenizer(), config, ["a", "b"])


class FakeProcessor:
    """Answers like a sentencepiece processor: one id per letter, BOS 2."""

    def __init__(self, model_file: str) -> None:
        self.model_file = model_file

    def encode(self, text: str, add_bos: bool = False) -> list[int]:
        return [2] * add_bos + [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def test_paligemma_rules(monkeypatch, tmp_path, caplog) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", types.SimpleNamespace(SentencePieceProcessor=FakeProcessor))
    path = tmp_path / "paligemma_tokenizer.model"
    path.write_bytes(b"x")
    tokenizer = t.make_tokenizer(str(path))
    tokens, mask = t.tokenize(tokenizer, tiny(), ["Put_it\n", "x" * 14 + "lost"])
    assert tokens[0][mask[0]].tolist() == [2, *map(ord, "Put it"), 10]
    assert tokens[1].tolist() == [2, *[ord("x")] * 14, 10]
    assert "cut to 16" in caplog.text and "'lost' is lost" in caplog.text
    exact, _ = t.tokenize(tokenizer, tiny(), ["y" * 14])
    assert exact[0].tolist() == [2, *[ord("y")] * 14, 10] and len(caplog.records) == 1
    state = np.zeros(20, np.float32)
    whole, cut = ("".join(map(chr, tokenizer.encode_with_state("go", state, length)[1:])) for length in (200, 40))
    assert whole == "Task: go, State: " + " ".join(["128"] * 20) + ";\nAction: "
    assert cut == whole[:29] + ";\nAction: "
    with pytest.raises(FileNotFoundError, match="none does not exist"):
        t.make_tokenizer(str(tmp_path / "none"))
