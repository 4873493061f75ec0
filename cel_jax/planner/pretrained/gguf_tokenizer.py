"""The byte-level tokenizer that a GGUF file describes by vocabulary, merges and the name of its pre-tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cel_jax.planner.byte_pairs import TokenizerError, library

CONTROL, USER_DEFINED = 3, 4  # GGUF's token types that text never merges into
# Words, runs of up to N digits, punctuation and white space, as the published tokenizer.json files have them.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json. Raises TokenizerError for a kind that is not known."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(f"tokenizer {kind!r}; expected a byte-level one, which GGUF calls 'gpt2'")
    tokens, tokenizers = metadata["tokenizer.ggml.tokens"], library()
    tokenizer = tokenizers.Tokenizer(_merging(tokens, metadata.get("tokenizer.ggml.merges", ())))
    _set_splitting(tokenizer, str(metadata.get("tokenizer.ggml.pre", "default")))
    types = metadata.get("tokenizer.ggml.token_type", ())
    added = [token for token, kind in zip(tokens, types, strict=False) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in added])
    return str(tokenizer.to_str())


def _merging(tokens: Sequence[str], merges: Sequence[str]) -> Any:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        return library().models.BPE(vocab=vocabulary, merges=pairs)
    except Exception as error:  # the library raises bare exceptions
        raise TokenizerError(f"vocabulary and merges do not fit: {error}; get the file anew") from error


def _set_splitting(tokenizer: Any, name: str) -> None:
    """How text is cut before merging. Raises TokenizerError with the known names."""
    tokenizers = library()
    splits, level = tokenizers.pre_tokenizers, tokenizers.pre_tokenizers.ByteLevel
    isolated = lambda digits: splits.Split(tokenizers.Regex(_WORDS.format(digits=digits)), "isolated")  # noqa: E731
    known = {
        "smollm": lambda: [splits.Digits(individual_digits=True), level(add_prefix_space=False)],
        "qwen2": lambda: [isolated(""), level(add_prefix_space=False, use_regex=False)],
        "llama-bpe": lambda: [isolated("{1,3}"), level(add_prefix_space=False, use_regex=False)],
    }
    if name not in known:
        raise TokenizerError(f"pre-tokenizer {name!r}; known are {', '.join(sorted(known))}")
    tokenizer.pre_tokenizer = splits.Sequence(known[name]())
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = tokenizers.normalizers.NFC()
