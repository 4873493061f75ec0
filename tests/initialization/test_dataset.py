import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import PolicyConfig
from cel_jax.data.normalize import EPSILON
from cel_jax.initialization import dataset
from cel_jax.models.presets import make_config
from cel_jax.models.tokenizer import ByteTokenizer
from tests.initialization.toy_demos import BLIND, SEEING, walk

HORIZON = 6


def test_chunks_end_with_their_episode_and_before_taught_errors() -> None:
    wrong = np.ones(20, bool)
    wrong[[8, 9]] = False
    first, second = walk(0), dataclasses.replace(walk(1), taught=wrong)
    source = dataset.build([first, second])
    assert 28 not in source.start and 29 not in source.start  # nothing begins where the expert errs
    actions, mask = dataset.chunk_actions(source, jnp.array([18, 26]), HORIZON)
    np.testing.assert_array_equal(mask, [[True] * 2 + [False] * 4, [True] * 2 + [False] * 4])
    np.testing.assert_array_equal(actions[0, :2], first.action[18:])
    np.testing.assert_array_equal(actions[0, 2:], np.repeat(first.action[-1:], 4, 0))
    np.testing.assert_array_equal(actions[1], second.action[6:12])


def test_batches_hold_what_the_demonstration_says() -> None:
    demos = [walk(0, prompt="left"), walk(1, prompt="right")]
    source = dataset.build(demos)
    stats = dataset.statistics(source, HORIZON, BLIND.delta_mask)
    policy = PolicyConfig(action_horizon=HORIZON, max_token_len=8)
    config = make_config("nano", BLIND, policy)
    tokens = dataset.tokens_for(source, config, ByteTokenizer(), stats)
    inputs, actions, mask = dataset.gather(source, jnp.array([3, 25]), stats, BLIND.delta_mask, HORIZON, tokens)
    expected = demos[1].action[5 : 5 + HORIZON] - demos[1].state[5, :2] * [1, 0]
    np.testing.assert_allclose(actions[1] * (stats.action_std + EPSILON) + stats.action_mean, expected, atol=1e-5)
    assert bool(mask.all())
    np.testing.assert_allclose(
        inputs.objects[1] * (stats.objects_std + EPSILON) + stats.objects_mean, demos[1].objects[5], atol=1e-5
    )
    for row, text in enumerate(("left", "right")):
        wanted = ByteTokenizer().encode(text, 8)
        assert inputs.tokens[row, : len(wanted)].tolist() == wanted


def test_images_belong_to_their_frame() -> None:
    source = dataset.build([walk(0, images=True), walk(1, frames=10, images=True)])
    assert source.start.tolist() == [0, 3, 6, 9, 12, 15, 18, 20, 23, 26, 29]
    brightness = np.asarray(source.images["top"][source.seen]).mean((1, 2, 3)).round()
    np.testing.assert_allclose(brightness, [0, 30, 60, 90, 120, 150, 180, 0, 30, 60, 90], atol=1)


def test_a_state_in_the_prompt_gives_every_chunk_its_tokens() -> None:
    source = dataset.build([walk(0, images=True)])
    stats = dataset.statistics(source, HORIZON, SEEING.delta_mask)
    policy = PolicyConfig(action_horizon=HORIZON, max_token_len=60)
    config = dataclasses.replace(make_config("nano", SEEING, policy), discrete_state_input=True)
    tokens = dataset.tokens_for(source, config, ByteTokenizer(), stats)
    assert tokens.tokens.shape == (source.num_chunks, 60)
    assert len(np.unique(np.asarray(tokens.tokens), axis=0)) > 1


def test_nothing_to_train_on() -> None:
    with pytest.raises(ValueError, match="no demonstrations"):
        dataset.build([])
