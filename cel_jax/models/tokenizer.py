"""Prompts to token ids: bytes by default, PaliGemma's sentencepiece file for released checkpoints.

Shape letters: B prompts, L max_token_len.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from cel_jax.models.presets import BYTE_VOCAB, Pi0Config

PAD_ID = 0
BYTE_OFFSET = BYTE_VOCAB - 256  # the ids below are special; only PAD_ID is used
STATE_BINS = 256
STATE_END = ";\nAction: "  # of pi0.5's prompt
log = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """Text to ids, without padding."""

    def encode(self, text: str, max_token_len: int) -> list[int]:
        """At most `max_token_len` ids."""

    def encode_with_state(self, text: str, state: np.ndarray, max_token_len: int) -> list[int]:
        """pi0.5: the normalised state, float32 [S] without padding, stands in the prompt."""


class ByteTokenizer:
    """UTF-8 bytes and a newline. A prompt that does not fit is an error: two tasks must never look alike."""

    def encode(self, text: str, max_token_len: int) -> list[int]:
        ids = [BYTE_OFFSET + byte for byte in f"{_clean(text)}\n".encode()]
        return _require_fit(ids, text, max_token_len)

    def encode_with_state(self, text: str, state: np.ndarray, max_token_len: int) -> list[int]:
        ids = [BYTE_OFFSET + byte for byte in _state_prompt(text, state).encode()]
        return _require_fit(ids, text, max_token_len)


class SentencePieceTokenizer:
    """PaliGemma's tokenizer as openpi calls it. Longer prompts are cut, with a warning that says what was lost.

    Unlike openpi's cut ours keeps the end that starts the answer (the newline; pi0.5's ";\\nAction: "), which every
    prompt of the training data has.
    """

    def __init__(self, path: str) -> None:
        self._processor: Any = _load_sentencepiece(path)

    def encode(self, text: str, max_token_len: int) -> list[int]:
        return self._fit(self._processor.encode(_clean(text), add_bos=True), "\n", text, max_token_len)

    def encode_with_state(self, text: str, state: np.ndarray, max_token_len: int) -> list[int]:
        whole = self._processor.encode(_state_prompt(text, state), add_bos=True)
        return whole if len(whole) <= max_token_len else self._fit(whole, STATE_END, text, max_token_len)

    def _fit(self, ids: list[int], end: str, text: str, max_token_len: int) -> list[int]:
        tail = self._processor.encode(end)
        if end == STATE_END:
            ids = ids[: len(ids) - len(tail)]
        room = max_token_len - len(tail)
        if len(ids) > room:
            lost = self._processor.decode(ids[room:])
            log.warning(
                "prompt %r is cut to %d tokens: %r is lost; set policy.max_token_len", text, max_token_len, lost
            )
        return ids[:room] + tail


def make_tokenizer(path: str = "") -> Tokenizer:
    """The byte tokenizer, or PaliGemma's from its sentencepiece file."""
    return SentencePieceTokenizer(path) if path else ByteTokenizer()


def tokenize(
    tokenizer: Tokenizer, config: Pi0Config, prompts: Sequence[str], states: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """int32 [B, L] and mask bool [B, L], padded on the right.

    states: float32 [B, S], normalised and unpadded; used (and needed) only with `discrete_state_input`.
    """
    length = config.max_token_len
    if not config.discrete_state_input:
        known = {prompt: tokenizer.encode(prompt, length) for prompt in set(prompts)}
        return _pad([known[prompt] for prompt in prompts], length)
    if states is None or len(states) != len(prompts):
        raise ValueError(f"this policy reads the state in its prompt: give {len(prompts)} states")
    rows = [tokenizer.encode_with_state(p, s, length) for p, s in zip(prompts, states, strict=True)]
    return _pad(rows, length)


def _pad(rows: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.full((len(rows), length), PAD_ID, np.int32)
    mask = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        mask[i, : len(row)] = True
    return tokens, mask


def discretize(state: np.ndarray) -> np.ndarray:
    """int [S]: 256 equal bins over -1..1; below gives -1, above 255, as in openpi."""
    return np.digitize(state, np.linspace(-1, 1, STATE_BINS + 1)[:-1]) - 1


def _state_prompt(text: str, state: np.ndarray) -> str:
    numbers = " ".join(str(number) for number in discretize(state))
    return f"Task: {_clean(text)}, State: {numbers}{STATE_END}"


def _clean(text: str) -> str:
    return text.strip().replace("_", " ").replace("\n", " ")


def _require_fit(ids: list[int], text: str, max_token_len: int) -> list[int]:
    if len(ids) > max_token_len:
        raise ValueError(
            f"prompt {text!r} needs {len(ids)} tokens, the policy takes {max_token_len}; set policy.max_token_len"
        )
    return ids


def _load_sentencepiece(path: str) -> Any:
    if not pathlib.Path(path).exists():
        raise FileNotFoundError(f"tokenizer file {path} does not exist; give PaliGemma's, or none for bytes")
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError(f"{path} needs sentencepiece: pip install sentencepiece") from error
    return sentencepiece.SentencePieceProcessor(model_file=path)
