"""Robots' features and tiny configurations for the tests of this folder."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.config import PolicyConfig
from cel_jax.data.episode import CameraSpec, Features
from cel_jax.data.normalize import NormStats
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.pi0 import Params, param_shapes
from cel_jax.models.policy import Policy
from cel_jax.models.presets import GemmaConfig, Pi0Config, SigLIPConfig, make_config

DELTA = (True, True, True, False, True)
POLICY = PolicyConfig(action_horizon=6, actions_per_token=3, flow_steps=3)
CAMERAS = (CameraSpec("head", 24, 32), CameraSpec("wrist", 32, 32))


def features(mode: str = "state", **changes: object) -> Features:
    """An odd robot: 7 state and 5 action numbers."""
    base = Features(
        robot_type="odd",
        state_dim=7,
        action_dim=5,
        cameras=CAMERAS if mode == "images" else (),
        objects_shape=(3, 4) if mode == "state" else None,
        fps_hz=30.0,
        delta_mask=DELTA,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def tiny(mode: str = "state", **changes: object) -> Pi0Config:
    """Experts of different widths, two layers, four heads with two key-value heads."""
    size = {
        "paligemma": GemmaConfig(24, 2, 48, 4, 2, 8),
        "action_expert": GemmaConfig(32, 2, 40, 4, 2, 8),
        "image_px": 32,
        "unroll": 1,
    }
    if mode == "images":
        size["siglip"] = SigLIPConfig(16, 2, 32, 2, 16)
    return dataclasses.replace(make_config("nano", features(mode), POLICY), **(size | changes))  # type: ignore[arg-type]


def noisy_params(config: Pi0Config, seed: int = 0, scale: float = 0.3) -> Params:
    """Random numbers in every leaf, so that none is trivial (several start at zero). Nothing compiles."""
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        fan_in = leaf.shape[-2] if len(leaf.shape) > 1 else 1
        return jnp.asarray(rng.normal(0, scale if fan_in == 1 else fan_in**-0.5, leaf.shape), jnp.float32)

    return jax.tree.map(draw, param_shapes(config))


def random_inputs(config: Pi0Config, batch: int, seed: int = 0) -> ModelInputs:
    rng = np.random.default_rng(seed)
    length, px = config.max_token_len, config.image_px
    valid = np.arange(length)[None] < rng.integers(3, length + 1, (batch, 1))
    shape = config.objects_shape
    return ModelInputs(
        images={k: jnp.asarray(rng.uniform(-1, 1, (batch, px, px, 3)), jnp.float32) for k in config.image_keys},
        image_masks={},
        objects=None if shape is None else jnp.asarray(rng.normal(size=(batch, *shape)), jnp.float32),
        tokens=jnp.asarray(rng.integers(4, 260, (batch, length)) * valid, jnp.int32),
        token_mask=jnp.asarray(valid),
        state=jnp.asarray(rng.normal(size=(batch, config.state_width)), jnp.float32),
    )


def norm_stats(robot: Features, horizon: int = 6, seed: int = 0) -> NormStats:
    rng = np.random.default_rng(seed)

    def pair(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=shape).astype(np.float32), rng.uniform(0.5, 2, shape).astype(np.float32)

    objects = (None, None) if robot.objects_shape is None else pair(*robot.objects_shape)
    return NormStats(*pair(robot.state_dim), *pair(horizon, robot.action_dim), *objects)


def tiny_policy(mode: str = "state", **changes: object) -> Policy:
    config, robot = tiny(mode, **changes), features(mode)
    return Policy(config, noisy_params(config), norm_stats(robot), robot, POLICY)


def observations(mode: str, batch: int, seed: int = 0):  # type: ignore[no-untyped-def]
    """states, images, objects, prompts as `Policy.infer` takes them."""
    rng, robot = np.random.default_rng(seed), features(mode)
    images = {c.name: rng.integers(0, 256, (batch, c.height, c.width, 3), dtype=np.uint8) for c in robot.cameras}
    objects = rng.normal(size=(batch, 3, 4)).astype(np.float32) if mode == "state" else None
    states = rng.normal(size=(batch, robot.state_dim)).astype(np.float32)
    return states, images, objects, ["Pack the phone."] * batch
