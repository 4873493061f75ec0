"""A planner of two small layers and a run of small rounds, for tests of the machinery around them."""

from __future__ import annotations

import jax

from cel_jax.planner import decoder
from cel_jax.planner.config import HarnessConfig, ModelConfig, PlannerConfig, RlConfig
from cel_jax.planner.policy import Planner
from cel_jax.planner.words import WordTokenizer

WORDS = ["pick", " the", " cable", "place", "done"]


def small_planner(seed: int = 0, words: list[str] | None = None) -> Planner:
    """Random weights."""
    tokenizer = WordTokenizer(words or WORDS)
    sizes = decoder.preset("debug", tokenizer.vocab_size)
    return Planner(decoder.init_params(sizes, jax.random.key(seed)), sizes, tokenizer, 1)


def small_config(rounds: int = 3) -> PlannerConfig:
    """One episode at a time: only then are the sampler's batches, and with them the last bits, the same every time."""
    return PlannerConfig(
        name="small",
        model=ModelConfig(preset="debug", max_prompt_tokens=640, max_response_tokens=6),
        harness=HarnessConfig(max_turns=2, max_episode_s=120.0, slots=1),
        rl=RlConfig(rounds=rounds, groups=2, attempts=2, batch_size=4, peak_lr=1e-2),
    )
