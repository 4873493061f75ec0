"""Sampling: the trainer sees the same log-probabilities, and rows do not disturb each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.planner import decoder
from cel_jax.planner.batches import make_batch
from cel_jax.planner.losses import token_logprobs
from cel_jax.planner.records import Sampling
from cel_jax.planner.sampler import ContextOverflow, Sampler, filtered_logprobs

END = 3


def _sampler(qk_norm: bool = True, tied: bool = True, dtype: str = "float32") -> Sampler:
    config = decoder.DecoderConfig(40, 32, 2, 4, 2, 8, 48, qk_norm=qk_norm, tied=tied)
    params = decoder.init_params(config, jax.random.key(0))
    params = jax.tree.map(lambda leaf: leaf * 3.0 if leaf.ndim > 1 else leaf, params)  # far from uniform
    return Sampler(params, config, END, 64, 20, dtype)


def _prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [list(map(int, rng.integers(4, 40, n))) for n in (5, 40, 17)]


@pytest.mark.parametrize("qk_norm,tied", [(True, True), (False, False)])
def test_the_trainer_recomputes_the_samplers_logprobs(qk_norm: bool, tied: bool) -> None:
    sampler = _sampler(qk_norm, tied)
    out = sampler.sample(_prompts(), [Sampling()] * 3, [1, 2, 3])
    batch = make_batch(_prompts(), [g.ids for g in out], 64, 20)
    logits = decoder.response_logits(
        sampler.params, sampler.config, "float32", batch["tokens"], batch["valid"], batch["tokens"].shape[1] - 20
    )
    found = token_logprobs(logits, batch["targets"])
    for row, generation in enumerate(out):
        assert 1 <= len(generation.ids) <= 20
        np.testing.assert_allclose(found[row, : len(generation.ids)], generation.logprobs, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch() -> None:
    sampler = _sampler()
    together = sampler.sample(_prompts(), [Sampling()] * 3, [1, 2, 3])
    alone = [sampler.sample([p], [Sampling()], [s])[0] for p, s in zip(_prompts(), [1, 2, 3], strict=True)]
    assert [g.ids for g in together] == [g.ids for g in alone]
    assert sampler.sample(_prompts()[:1], [Sampling()], [9])[0].ids != alone[0].ids


def test_a_row_stops_at_the_end_token_or_at_its_own_limit() -> None:
    sampler = _sampler()
    outs = sampler.sample([[5, 6]] * 64, [Sampling(max_tokens=7)] * 64, list(range(64)))
    assert {g.finish for g in outs} == {"stop", "length"}
    for g in outs:
        assert len(g.ids) <= 7 and END not in g.ids[:-1] and (g.finish == "stop") == (g.ids[-1] == END)


def _filter(logits: list[float], used: list[bool] | None = None, **settings: float) -> np.ndarray:
    given = Sampling(**settings)  # type: ignore[arg-type]
    names = ("temperature", "top_p", "presence_penalty", "top_k")
    controls = {n: jnp.array([getattr(given, n)]) for n in names}
    mark = jnp.array([used or [False] * len(logits)])
    return np.exp(np.asarray(filtered_logprobs(jnp.array([logits], jnp.float32), mark, controls))[0])


def test_distribution_after_truncation_is_the_renormalised_one() -> None:
    p = np.array([0.5, 0.3, 0.15, 0.05])
    logits = list(np.log(p))
    np.testing.assert_allclose(_filter(logits), p, rtol=1e-5)
    np.testing.assert_allclose(_filter(logits, top_k=2), [0.625, 0.375, 0, 0], atol=1e-6)
    np.testing.assert_allclose(_filter(logits, top_p=0.7), [0.625, 0.375, 0, 0], atol=1e-6)
    np.testing.assert_allclose(_filter(logits, top_p=0.01), [1, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(_filter(logits, temperature=0.5), p**2 / (p**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(_filter(logits, temperature=0.0), [1, 0, 0, 0], atol=1e-6)
    penalised = np.array([0.5 * np.exp(-1.5), 0.3, 0.15, 0.05])
    np.testing.assert_allclose(
        _filter(logits, [True, False, False, False], presence_penalty=1.5), penalised / penalised.sum(), rtol=1e-5
    )


def test_samples_follow_the_reported_distribution() -> None:
    sampler = _sampler()
    outs = sampler.sample([[5, 6, 7]] * 2048, [Sampling(max_tokens=1)] * 2048, list(range(2048)))
    reported = {g.ids[0]: np.exp(g.logprobs[0]) for g in outs}
    counts = np.bincount([g.ids[0] for g in outs], minlength=40) / 2048
    best = max(reported, key=lambda token: reported[token])
    assert abs(counts[best] - reported[best]) < 4 * np.sqrt(reported[best] / 2048)


def test_a_prompt_too_long_is_named() -> None:
    with pytest.raises(ContextOverflow, match="65 tokens, the context holds 64"):
        _sampler().sample([[5] * 65], [Sampling()], [0])


def test_bfloat16_rollout_differs_so_that_weights_have_work() -> None:
    exact, rough = _sampler(), _sampler(dtype="bfloat16")
    a = exact.sample(_prompts(), [Sampling(max_tokens=1)] * 3, [1, 2, 3])
    b = rough.sample(_prompts(), [Sampling(max_tokens=1)] * 3, [1, 2, 3])
    assert max(abs(x.logprobs[0] - y.logprobs[0]) for x, y in zip(a, b, strict=True)) > 1e-4
