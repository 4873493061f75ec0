"""A word-level tokenizer for small planners: words with their leading space, runs of punctuation, bytes for the rest.

Lossless: decoding gives back the text. The vocabulary comes from a corpus and is kept with the policy.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
from collections.abc import Iterable, Sequence

SPECIALS = (
    "<|pad|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
BYTES = 256
_SPECIAL = re.compile("(" + "|".join(re.escape(s) for s in SPECIALS) + ")")
_PIECE = re.compile(r" ?[^\W\d_]+| ?\d+|\n+| ?[^\w\s]+|.", re.DOTALL)


class WordTokenizer:
    """Ids: specials, then bytes, then words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        first = len(SPECIALS) + BYTES
        self._ids = {word: first + i for i, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise ValueError("the vocabulary names a word twice")
        self._special_ids = {text: i for i, text in enumerate(SPECIALS)}

    @property
    def vocab_size(self) -> int:
        return len(SPECIALS) + BYTES + len(self.words)

    @property
    def end_id(self) -> int:
        return self._special_ids["<|im_end|>"]

    @property
    def fingerprint(self) -> str:
        """The same for equal vocabularies only."""
        return "words-" + hashlib.sha256(json.dumps([SPECIALS, self.words]).encode()).hexdigest()[:16]

    def encode(self, text: str, specials: bool = True) -> list[int]:
        """Ids of a text. specials False: text that names a special token is only text (what people or tools wrote)."""
        parts = _SPECIAL.split(text) if specials else [text]
        ids: list[int] = []
        for part in parts:
            ids += [self._special_ids[part]] if specials and part in self._special_ids else self._plain(part)
        return ids

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _PIECE.findall(text):
            known = self._ids.get(piece)
            ids += [len(SPECIALS) + byte for byte in piece.encode()] if known is None else [known]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; byte sequences that are no UTF-8 become replacement characters."""
        return b"".join(self._bytes_of(i) for i in ids).decode("utf-8", "replace")

    def _bytes_of(self, i: int) -> bytes:
        if i < len(SPECIALS):
            return SPECIALS[i].encode()
        if i < len(SPECIALS) + BYTES:
            return bytes([i - len(SPECIALS)])
        return self.words[i - len(SPECIALS) - BYTES].encode()


def make_vocabulary(texts: Iterable[str], most: int = 1024) -> list[str]:
    """The commonest pieces of more than one byte, then one-byte ones seen; ties by the alphabet."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        for part in _SPECIAL.split(text):
            if part not in SPECIALS:
                counts.update(_PIECE.findall(part))
    return sorted(sorted(counts), key=lambda piece: -counts[piece])[:most]
