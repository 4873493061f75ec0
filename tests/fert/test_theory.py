"""The paper's claims on its own model, numerically: Lemmas 1 and 2, Theorem 1 with its step size, the loss identity."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.models import flow
from cel_jax.replay.priorities import Interval, Priorities
from tests.fert.stage_model import StageModel

SEEDS = range(40)


def random_model(seed: int) -> tuple[StageModel, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return StageModel(rng.normal(1.0, 1.5, int(rng.integers(2, 12)))), rng


def comonotone(model: StageModel, rng: np.random.Generator) -> np.ndarray:
    """An emphasis [T] of mean one that rises with the stages' failure (equation (28))."""
    order = np.argsort(np.argsort(model.fail))
    emphasis = np.sort(rng.random(model.stages) + 0.05)[order]
    return emphasis / emphasis.mean()


def smoothness(stages: int) -> float:
    """lambda_J: no entry of the Hessian exceeds one, so no eigenvalue exceeds T."""
    return float(stages)


def largest_step(model: StageModel, emphasis: np.ndarray) -> float:
    """Equation (38): the smaller of (34) and (37)."""
    uniform = np.sum(model.direction(np.ones(model.stages)) ** 2)
    fert, bound = np.sum(model.direction(emphasis) ** 2), smoothness(model.stages)
    return min(2 * model.mu / (bound * uniform), 2 * model.kappa(emphasis) / (bound * (fert + uniform)))


@pytest.mark.parametrize("seed", range(3))
def test_gradient_and_success_are_those_of_sampled_episodes(seed: int) -> None:
    """Equations (20)-(23): grad J = E[y sum of scores], and the mean score of successes is grad J / J."""
    model, rng = random_model(seed)
    end, scores = model.run(200_000, rng)
    success = end == model.stages
    assert success.mean() == pytest.approx(model.success, abs=5e-3)
    np.testing.assert_allclose((success[:, None] * scores).mean(axis=0), model.gradient, atol=5e-3)
    np.testing.assert_allclose(scores[success].mean(axis=0), model.gradient / model.success, atol=1e-12)
    nudged = [model.moved(1e-6 * axis).success - model.moved(-1e-6 * axis).success for axis in np.eye(model.stages)]
    np.testing.assert_allclose(np.array(nudged) / 2e-6, model.gradient, atol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_lemma_1_uniform_replay_of_successes_helps(seed: int) -> None:
    """(16): mu = |v|^2 / (T J) > 0, and it is the product of v with the uniform direction."""
    model, _ = random_model(seed)
    gradient = model.gradient
    assert model.mu > 0
    assert model.mu == pytest.approx(gradient @ gradient / (model.stages * model.success))
    assert model.mu == pytest.approx(gradient @ model.direction(np.ones(model.stages)))


@pytest.mark.parametrize("seed", SEEDS)
def test_lemma_2_emphasis_on_failing_stages_helps_more(seed: int) -> None:
    """(17) with both forms of (29), and (40): v . G_FERT = mu + kappa. An emphasis the other way round costs."""
    model, rng = random_model(seed)
    emphasis, fail = comonotone(model, rng), model.fail
    pairs = (emphasis[:, None] - emphasis) * (fail[:, None] ** 2 - fail**2)
    kappa = model.kappa(emphasis)
    assert kappa > 0
    assert kappa == pytest.approx(model.success / model.stages * np.sum((emphasis - 1) * fail**2))
    assert kappa == pytest.approx(model.success / (2 * model.stages**2) * pairs.sum())
    assert model.gradient @ model.direction(emphasis) == pytest.approx(model.mu + kappa)
    backwards = emphasis[np.argsort(fail)][::-1][np.argsort(np.argsort(fail))]
    assert model.kappa(backwards) < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_theorem_1_holds_up_to_its_step_size(seed: int) -> None:
    """(18) and (19) for every step below (38)."""
    model, rng = random_model(seed)
    emphasis, bound = comonotone(model, rng), smoothness(model.stages)
    fert, uniform = model.direction(emphasis), model.direction(np.ones(model.stages))
    for share in (1e-3, 0.1, 0.5, 0.9, 0.999):
        step = share * largest_step(model, emphasis)
        by_fert, by_uniform = model.moved(step * fert).success, model.moved(step * uniform).success
        assert by_fert > by_uniform > model.success
        promised = step * (model.mu + model.kappa(emphasis)) - bound * step**2 / 2 * (fert @ fert)
        assert by_fert - model.success >= promised


def test_the_bound_on_curvature_is_one() -> None:
    """(30)-(31): J bends by no more than lambda_J anywhere, and its Hessian is that of finite differences."""
    for seed in range(200):
        model, _ = random_model(seed)
        hessian = model.hessian()
        assert np.abs(np.linalg.eigvalsh(hessian)).max() <= smoothness(model.stages)
        axis = np.eye(model.stages)[0]
        change = (model.moved(1e-5 * axis).gradient - model.moved(-1e-5 * axis).gradient) / 2e-5
        np.testing.assert_allclose(change, hessian[0], atol=1e-7)


def test_a_step_far_beyond_the_bound_can_hurt() -> None:
    """The bound is needed: with the same emphasis, a long step falls behind uniform replay."""
    model = StageModel(np.array([0.0, 0.5, 1.0, -1.5]))
    emphasis = np.array([0.02, 0.01, 0.01, 3.96])
    long = 400.0
    fert, uniform = (model.moved(long * model.direction(e)).success for e in (emphasis, np.ones(4)))
    assert long > largest_step(model, emphasis) and fert < uniform


def test_our_priorities_give_an_emphasis_that_rises_with_failure() -> None:
    """(28) from the algorithm itself: failures come as often as the stages fail, each retrieves its stage's frames of
    one success. The mean weight of a stage over the events orders the stages as their failures do, so kappa > 0."""
    model, rng, frames = StageModel(np.array([2.5, 0.3, 1.2, -0.6])), np.random.default_rng(0), 40
    end, _ = model.run(30_000, rng)
    failed = end[end < model.stages]
    priorities, summed = Priorities(horizon=1), np.zeros(model.stages)
    for success in range(5):
        starts = np.arange(frames * model.stages, dtype=np.int32)
        priorities.add_episode(f"e{success}", starts, len(starts), 0.5)
    for number, stage in enumerate(failed[:4000]):
        left = int(stage) * frames
        found = [Interval(f"e{int(rng.integers(0, 5))}", left, left + frames)]
        priorities.apply(number + 1, "f", 0.88, found)
        for key in priorities.episodes:
            summed += priorities.weights(key).reshape(model.stages, frames).mean(axis=1)
    emphasis = summed / summed.mean()
    often = np.bincount(failed, minlength=model.stages)
    assert (np.argsort(emphasis) == np.argsort(often)).all()
    reached = np.cumprod(np.concatenate([[1.0], 1 - model.fail[:-1]]))
    np.testing.assert_allclose(often / len(end), reached * model.fail, atol=0.01)
    assert model.kappa(emphasis) > 0


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.7, 0.99])
def test_flow_matching_is_noise_prediction_reweighted(alpha: float) -> None:
    """(53), (54): |v - (noise - A)|^2 = |predicted noise - noise|^2 / (1 - alpha)^2, with the model's own loss."""
    actions, noise, velocity = np.random.default_rng(3).normal(size=(3, 2, 30, 16)).astype(np.float32)
    blended = np.asarray(flow.interpolate(actions, noise, np.full(2, alpha, np.float32)))
    predicted = blended + (1 - alpha) * velocity
    loss = np.asarray(flow.loss_per_step(velocity, flow.target_velocity(actions, noise)))
    np.testing.assert_allclose(loss, np.mean((predicted - noise) ** 2, axis=-1) / (1 - alpha) ** 2, rtol=2e-3)
