"""A published checkpoint through the planner's own parts: sampling, supervised start, RL, resume."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.planner import decoder, policy, sft
from cel_jax.planner.batches import make_batch
from cel_jax.planner.config import HarnessConfig, ModelConfig, PlannerConfig, RlConfig, SftConfig
from cel_jax.planner.policy import Planner
from cel_jax.planner.pretrained.load import load_pretrained
from cel_jax.planner.records import Sampling
from cel_jax.planner.rl import RlRun
from cel_jax.planner.sampler import Generation, Sampler, filtered_logprobs
from tests.planner.checkpoints import random_params, small_config, small_folder, tokenizer_json, unlike, write_folder

SETTINGS = [
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.3, top_k=7, presence_penalty=1.5),
    Sampling(temperature=0.8, top_k=40, top_p=0.8, max_tokens=5),
]
RESPONSE = 16


def recomputed(planner: Planner, prompts: list[list[int]], found: list[Generation]) -> list[np.ndarray]:
    """The trainer's forward, then each row's own sampling distribution, then the chosen tokens."""
    batch = make_batch(prompts, [g.ids for g in found], 64, RESPONSE)
    slots = batch["tokens"].shape[1] - RESPONSE
    logits = decoder.response_logits(planner.params, planner.config, "float32", batch["tokens"], batch["valid"], slots)
    return [_chosen(logits[row], g, SETTINGS[row]) for row, g in enumerate(found)]


def _chosen(logits: jax.Array, generation: Generation, setting: Sampling) -> np.ndarray:
    names = ("temperature", "top_p", "top_k", "presence_penalty")
    controls = {name: jnp.array([getattr(setting, name)]) for name in names}
    values = []
    for t, token in enumerate(generation.ids):
        used = np.zeros((1, logits.shape[-1]), bool)
        used[0, list(generation.ids[:t])] = True
        values.append(filtered_logprobs(logits[None, t], jnp.asarray(used), controls)[0, token])
    return np.asarray(values)


@pytest.mark.parametrize("qk_norm,tied", [(False, True), (True, False)])
def test_the_trainer_recomputes_what_a_loaded_model_sampled(tmp_path: pathlib.Path, qk_norm: bool, tied: bool) -> None:
    planner = load_pretrained(small_folder(tmp_path, qk_norm, tied))
    prompts = [list(range(7, 7 + n)) for n in (3, 61, 20, 33)]
    sampler = Sampler(planner.params, planner.config, planner.tokenizer.end_id, 64, RESPONSE)
    found = sampler.sample(prompts, SETTINGS, [1, 2, 3, 4])
    for generation, expected in zip(found, recomputed(planner, prompts, found), strict=True):
        assert len(generation.ids) >= 1
        np.testing.assert_allclose(generation.logprobs, expected, atol=1e-4)
    assert any(min(g.logprobs) < -0.1 for g in found)


def test_a_context_that_cannot_hold_the_limits_is_named(tmp_path: pathlib.Path) -> None:
    planner = load_pretrained(small_folder(tmp_path))
    with pytest.raises(ValueError, match="together exceed the 512 positions"):
        Sampler(planner.params, planner.config, planner.tokenizer.end_id, 500, 13)


def planner_config(checkpoint: pathlib.Path, rounds: int, max_turns: int = 2) -> PlannerConfig:
    return PlannerConfig(
        model=ModelConfig(checkpoint=str(checkpoint), max_prompt_tokens=1200, max_response_tokens=72),
        harness=HarnessConfig(max_turns=max_turns, max_episode_s=120.0, slots=4),
        sft=SftConfig(teacher_episodes=4, steps=2, batch_size=4, micro_batch_size=2),
        rl=RlConfig(rounds=rounds, groups=2, attempts=2, batch_size=4),
    )


@pytest.mark.slow
def test_supervised_start_and_resumed_rounds_from_a_checkpoint(tmp_path: pathlib.Path) -> None:
    sizes = unlike(small_config(False), context_tokens=2048)
    folder = write_folder(tmp_path / "hf", sizes, random_params(sizes), tokenizer_json())
    config, lines = planner_config(folder, rounds=1, max_turns=24), []  # the teacher has time for a success
    demonstrations = sft.teacher_episodes(config)
    base = sft.base_planner(config, demonstrations)
    targets = sft.target_turns(config, base, demonstrations, lines.append)
    assert targets and "Tools, one a line" in base.tokenizer.decode(targets[0].prompt_ids), "as the rollouts are told"
    trained = sft.train(config, base, targets, lines.append)
    assert not np.array_equal(trained.params["layers"]["q"], base.params["layers"]["q"])
    policy.save(tmp_path / "sft", trained)
    loaded = policy.load(tmp_path / "sft")
    config = planner_config(folder, rounds=1)
    first = RlRun(config, loaded, tmp_path / "rl", lines.append)
    after_one = first.run()
    assert first.history[0].counts["inconsistent"] == 0
    second = RlRun(planner_config(folder, rounds=2), loaded, tmp_path / "rl", lines.append)
    assert second.next_round == 1
    for a, b in zip(*map(jax.tree.leaves, (second.planner().params, after_one.params)), strict=True):
        np.testing.assert_array_equal(a, b)
    other = dataclasses.replace(loaded, config=unlike(loaded.config, width=128))
    with pytest.raises(ValueError, match="decoder-2x"):
        RlRun(config, other, tmp_path / "rl", lines.append)
