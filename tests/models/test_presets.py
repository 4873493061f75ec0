"""Sizes of the presets, and configurations for robots of all kinds."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import pytest

from cel_jax.config import PolicyConfig
from cel_jax.models.pi0 import param_shapes
from cel_jax.models.presets import PRESETS, config_from_dict, config_to_dict, make_config
from tests.models.robots import POLICY, features


def size(config):
    leaves = jax.tree.leaves(param_shapes(config))
    return len(leaves), sum(math.prod(leaf.shape) for leaf in leaves)


@pytest.mark.parametrize(("preset", "expected"), [("pi0", (50, 3_238_048_528)), ("pi05", (51, 3_353_433_872))])
def test_released_sizes(preset: str, expected: tuple[int, int]) -> None:
    config = make_config(preset, features("images"), PolicyConfig(action_horizon=50))
    assert size(config) == expected


@pytest.mark.parametrize(("preset", "low", "high"), [("nano", 0.5e6, 1.5e6), ("small", 80e6, 120e6)])
@pytest.mark.parametrize("mode", ["images", "state"])
def test_small_sizes(preset: str, mode: str, low: float, high: float) -> None:
    count = size(make_config(preset, features(mode), POLICY))[1]
    assert low <= count <= high or (mode, preset) == ("state", "small")


def test_only_pi0_pads() -> None:
    for preset in ("pi0", "pi05"):
        config = make_config(preset, features("images"), POLICY)
        assert (config.state_width, config.action_dim) == (32, 32)
    for preset in ("nano", "small"):
        config = make_config(preset, features("images"), POLICY)
        assert (config.state_width, config.action_dim) == (7, 5)


def test_prompt_lengths() -> None:
    lengths = {name: make_config(name, features("images"), POLICY).max_token_len for name in PRESETS}
    large = {"pi0": 48, "pi05": 200, "pi0_lora": 48, "pi05_lora": 200}
    assert lengths == large | {"small": 16, "nano": 16}


def test_nano_sees_nine_tokens_per_camera() -> None:
    config = make_config("nano", features("images"), PolicyConfig(actions_per_token=3))
    assert (config.tokens_per_image, config.num_action_tokens, config.prefix_len) == (9, 10, 2 * 9 + 16)


@pytest.mark.parametrize("mode", ["images", "state"])
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_round_trip(preset: str, mode: str) -> None:
    config = make_config(preset, features(mode), POLICY)
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


def test_wrong_configurations_are_named() -> None:
    with pytest.raises(ValueError, match="actions_per_token"):
        make_config("nano", features(), PolicyConfig(action_horizon=10, actions_per_token=3))
    with pytest.raises(ValueError, match="huge"):
        make_config("huge", features(), POLICY)
    with pytest.raises(ValueError, match="33"):
        make_config("pi0", features("images", action_dim=33), POLICY)
    with pytest.raises(ValueError, match="neither"):
        make_config("nano", features("images", cameras=()), POLICY)
    config = make_config("nano", features("images"), POLICY)
    with pytest.raises(ValueError, match="patch"):
        dataclasses.replace(config, image_px=100)
    with pytest.raises(ValueError, match="head_dim"):
        dataclasses.replace(config, paligemma=dataclasses.replace(config.paligemma, head_dim=8))
