"""The byte-level tokenizers of published models, by the `tokenizers` library, with special tokens kept apart.

Text of others never becomes a special token: merging alone cannot give one, and only `specials=True` looks for them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

START, END = "<|im_start|>", "<|im_end|>"  # ChatML, the template of `chat`
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class TokenizerError(ValueError):
    """A tokenizer that is none, or of another kind."""


def library() -> Any:
    """The `tokenizers` module. Raises ImportError with what to install."""
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
    except ImportError as error:
        raise ImportError(
            f"published tokenizers need their library (pip install 'cel-jax[planner]'): {error}"
        ) from error
    return tokenizers


class BytePairTokenizer:
    """serialized: the text of a tokenizer.json. Raises TokenizerError unless it is byte-level with ChatML's tokens."""

    def __init__(self, serialized: str) -> None:
        self.serialized = serialized
        described = _described(serialized)
        self._specials = {str(t["content"]): int(t["id"]) for t in described.get("added_tokens") or ()}
        missing = [token for token in (START, END) if token not in self._specials]
        if missing:
            raise TokenizerError(f"its tokenizer has no {' and no '.join(missing)}; the planner speaks ChatML")
        self._texts = {i: text for text, i in self._specials.items()}
        self._pattern = re.compile("(" + "|".join(re.escape(text) for text in self._longest_first()) + ")")
        self._plain = _plain_tokenizer(described)
        self._fingerprint = _fingerprint(described)

    def _longest_first(self) -> list[str]:
        return sorted(self._specials, key=lambda text: (-len(text), text))

    @property
    def vocab_size(self) -> int:
        return int(max([*self._plain.get_vocab(with_added_tokens=False).values(), *self._texts])) + 1

    @property
    def end_id(self) -> int:
        return self._specials[END]

    @property
    def fingerprint(self) -> str:
        """The same for equal tokenizers only."""
        return self._fingerprint

    def encode(self, text: str, specials: bool = True) -> list[int]:
        """Ids of a text. specials False: text that names a special token is only text (what people or tools wrote)."""
        if not specials:
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        for part in self._pattern.split(text):
            ids += [self._specials[part]] if part in self._specials else self.encode(part, specials=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; what is no UTF-8, or an id without a token, becomes a replacement character."""
        runs = itertools.groupby(ids, key=self._kind)
        return "".join(self._run_text(kind, list(run)) for kind, run in runs)

    def _kind(self, i: int) -> str:
        if i in self._texts:
            return "special"
        return "unknown" if self._plain.id_to_token(i) is None else "text"

    def _run_text(self, kind: str, run: list[int]) -> str:
        if kind == "special":
            return "".join(self._texts[i] for i in run)
        return UNKNOWN * len(run) if kind == "unknown" else str(self._plain.decode(run, skip_special_tokens=False))


def _described(serialized: str) -> dict[str, Any]:
    try:
        found = json.loads(serialized)
        kind, levels = found["model"]["type"], json.dumps([found.get("pre_tokenizer"), found.get("decoder")])
    except (ValueError, LookupError, TypeError) as error:
        raise TokenizerError(f"its tokenizer.json cannot be read ({error!r}); get it anew") from error
    if kind != "BPE" or levels.count('"ByteLevel"') < 2:
        raise TokenizerError(f"its tokenizer is of kind {kind}, not byte-level BPE; take another checkpoint")
    return dict(found)


def _plain_tokenizer(described: dict[str, Any]) -> Any:
    """Merging only: no special tokens, nothing added, nothing cut."""
    bare: dict[str, Any] = {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None}
    try:
        return library().Tokenizer.from_str(json.dumps(described | bare))
    except Exception as error:  # the library raises bare exceptions
        raise TokenizerError(f"its tokenizer.json cannot be used ({error}); get it anew") from error


def _fingerprint(described: dict[str, Any]) -> str:
    model = described["model"]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    added = sorted((t["id"], t["content"]) for t in described.get("added_tokens") or ())
    parts = [sorted(model["vocab"].items()), merges, added, described.get("pre_tokenizer"), described.get("normalizer")]
    return "byte-pairs-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
