"""Poses teach the tower and leave the policy's form as it is."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import InitConfig, PolicyConfig
from cel_jax.data.demonstrations import Demonstration
from cel_jax.data.images import encode_jpeg
from cel_jax.initialization import dataset, sft
from cel_jax.initialization.pose_guidance import find_guidance
from cel_jax.models.params_io import check_tree, flatten
from cel_jax.models.presets import make_config
from tests.initialization.toy_demos import BLIND, SEEING, walk
from tests.models.robots import noisy_params

POLICY = PolicyConfig(action_horizon=6, actions_per_token=3, max_token_len=4)
INIT = InitConfig(steps=60, batch_size=32, peak_lr=3e-3, pose_loss_weight=1.0)


def shown(number: int) -> Demonstration:
    """A walk whose camera shows a white square at the goal, and whose objects say where it is."""
    demo = walk(number, images=True)
    goal = np.random.default_rng(number).uniform(-1, 1, (2, 2))[1]
    row, column = (4 + 11 * (goal + 1)).astype(int)
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[row : row + 6, column : column + 6] = 255
    objects = np.repeat(goal[None, None].astype(np.float32), len(demo.state), 0)
    return dataclasses.replace(demo, images={"top": (encode_jpeg(picture),) * len(demo.image_steps)}, objects=objects)


def test_guidance_is_for_cameras_with_poses_alone() -> None:
    seeing, blind = make_config("nano", SEEING, POLICY), make_config("nano", BLIND, POLICY)
    assert find_guidance(seeing, dataset.build([shown(0)]), 1.0) is not None
    assert find_guidance(seeing, dataset.build([shown(0)]), 0.0) is None
    assert find_guidance(seeing, dataset.build([walk(0, images=True)]), 1.0) is None
    assert find_guidance(blind, dataset.build([walk(0)]), 1.0) is None


def test_the_loss_of_a_head_that_knows_is_zero_and_gradients_reach_the_tower() -> None:
    config = make_config("nano", SEEING, POLICY)
    source = dataset.build([shown(0), shown(1)])
    guidance = find_guidance(config, source, 2.0)
    assert guidance is not None
    stats = dataset.statistics(source, 6, SEEING.delta_mask)
    tokens = dataset.tokens_for(source, config, sft.make_tokenizer(""), stats)
    inputs, _, _ = dataset.gather(source, jnp.arange(3), stats, SEEING.delta_mask, 6, tokens)
    seen = dataclasses.replace(inputs, objects=None)
    params, head = noisy_params(config), guidance.init(jax.random.key(1))
    loss = jax.jit(guidance.loss)
    blind_head = {"kernel": 0 * head["kernel"], "bias": jnp.full(2, 0.25)}
    assert float(loss(blind_head, params, seen, jnp.full((3, 1, 2), 0.25))) == 0
    assert float(loss(blind_head, params, seen, jnp.full((3, 1, 2), 1.25))) == pytest.approx(2.0)
    gradients = jax.jit(jax.grad(lambda p: guidance.loss(head, p, seen, inputs.objects)))(params)
    tower = {name: leaf for name, leaf in flatten(gradients).items() if "img" in name}
    assert any(np.abs(leaf).max() > 0 for leaf in tower.values())


@pytest.mark.slow
def test_a_guided_policy_has_the_usual_leaves_and_learns() -> None:
    source, held = dataset.build([shown(n) for n in range(100)]), dataset.build([shown(n) for n in range(100, 120)])
    guided = sft.train(source, held, SEEING, POLICY, INIT)
    check_tree(flatten(guided.params), guided.config, "guided")
    assert guided.norm_stats.objects_mean is None
    alone = sft.train(source, held, SEEING, POLICY, dataclasses.replace(INIT, pose_loss_weight=0.0))
    assert guided.losses[0].held_out == alone.losses[0].held_out, "the reported loss is the flow loss alone"
    assert np.isfinite(guided.losses[-1].held_out) and guided.losses[-1].held_out < 0.8 * guided.losses[0].held_out
