"""A planner on disk and in memory: weights, sizes, tokenizer, and the template that fits them."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

import flax.traverse_util
import numpy as np

from cel_jax.planner import decoder
from cel_jax.planner.byte_pairs import BytePairTokenizer
from cel_jax.planner.chat import ChatTemplate, Tokenizer
from cel_jax.planner.decoder import DecoderConfig, Params
from cel_jax.planner.words import WordTokenizer

FILE, WEIGHTS, TOKENIZER = "planner.json", "params.npz", "tokenizer.json"


class PolicyMismatch(ValueError):
    """A planner that does not fit; the message names what differs."""


@dataclasses.dataclass(frozen=True)
class Planner:
    """One model with its tokenizer."""

    params: Params
    config: DecoderConfig
    tokenizer: Tokenizer
    version: int = 0

    @property
    def template(self) -> ChatTemplate:
        """A word-level model knows its few tools; others are told about them."""
        return ChatTemplate(self.tokenizer, list_tools=not isinstance(self.tokenizer, WordTokenizer))

    @property
    def model_name(self) -> str:
        """What a checkpoint must match: sizes and tokenizer."""
        c = self.config
        return f"decoder-{c.layers}x{c.width}-{c.vocab_size}-{self.tokenizer.fingerprint}"


def save(folder: str | pathlib.Path, planner: Planner) -> None:
    """Writes weights first and the description last, so that a folder with a description is whole."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    flat = flax.traverse_util.flatten_dict(planner.params, sep="/")
    np.savez(folder / WEIGHTS, **{name: np.asarray(leaf, np.float32) for name, leaf in flat.items()})  # type: ignore[arg-type]
    words = planner.tokenizer.words if isinstance(planner.tokenizer, WordTokenizer) else None
    if isinstance(planner.tokenizer, BytePairTokenizer):
        (folder / TOKENIZER).write_text(planner.tokenizer.serialized, encoding="utf-8")
    described = {
        "config": dataclasses.asdict(planner.config),
        "words": words,
        "fingerprint": planner.tokenizer.fingerprint,
        "version": planner.version,
    }
    new = folder / f".{FILE}.new"
    new.write_text(json.dumps(described))
    os.replace(new, folder / FILE)


def load(folder: str | pathlib.Path) -> Planner:
    """Raises FileNotFoundError where there is none, PolicyMismatch for another tokenizer or other sizes."""
    folder = pathlib.Path(folder)
    if not (folder / FILE).exists():
        raise FileNotFoundError(f"{folder}: no planner here ({FILE} is missing); run launch.planner_sft first")
    described = json.loads((folder / FILE).read_text())
    tokenizer = _tokenizer(described["words"], folder)
    if tokenizer.fingerprint != described["fingerprint"]:
        raise PolicyMismatch(
            f"{folder}: trained with tokenizer {described['fingerprint']}, here is {tokenizer.fingerprint}"
        )
    config = DecoderConfig(**described["config"])
    with np.load(folder / WEIGHTS, allow_pickle=False) as data:
        params = flax.traverse_util.unflatten_dict(dict(data), sep="/")
    check_params(params, config, str(folder))
    return Planner(params, config, tokenizer, described["version"])


def check_params(params: Params, config: DecoderConfig, where: str) -> None:
    """Raises PolicyMismatch naming leaves that are missing, surplus or of another shape."""
    flat = lambda tree: flax.traverse_util.flatten_dict(tree, sep="/")  # noqa: E731
    expected, found = flat(decoder.param_shapes(config)), flat(params)
    faults = [f"missing {n}" for n in sorted(set(expected) - set(found))]
    faults += [f"surplus {n}" for n in sorted(set(found) - set(expected))]
    for name in sorted(set(expected) & set(found)):
        if tuple(expected[name].shape) != tuple(found[name].shape):
            faults.append(f"{name}: expected {expected[name].shape}, got {found[name].shape}")
    if faults:
        raise PolicyMismatch(f"{where}: {'; '.join(faults[:12])}")


def _tokenizer(words: Sequence[str] | None, folder: pathlib.Path) -> Tokenizer:
    if words is not None:
        return WordTokenizer(words)
    if not (folder / TOKENIZER).exists():
        raise PolicyMismatch(f"{folder}: {FILE} names no words and {TOKENIZER} is missing; copy the whole folder")
    return BytePairTokenizer((folder / TOKENIZER).read_text(encoding="utf-8"))
