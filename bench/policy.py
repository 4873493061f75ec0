"""Inference and training of the policy network with random weights, each call waited for.

    python -m bench.policy [--quick] [--modes=state,images]
    python -m bench.policy --preset=pi0 --modes=images --image_px=224 --train_batches=32,64   (one H200, beside openpi)

Inference is the whole of `Policy.infer` (normalising, padding, sampling, absolute targets); training is the learner's
step with AdamW on float32 weights.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bench import report
from bench.report import Figure
from bench.timing import call_times_s
from cel_jax.config import PolicyConfig, TrainConfig
from cel_jax.data.episode import Features
from cel_jax.data.normalize import NormStats
from cel_jax.fert.batches import policy_loss
from cel_jax.fert.sharding import make_mesh, put_batch
from cel_jax.fert.trainer import create_state, make_optimizer, make_train_step
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.pi0 import flow_loss, init_params
from cel_jax.models.policy import Policy, serving_dtype
from cel_jax.models.presets import Pi0Config, make_config
from cel_jax.robots.tasks import make_world
from configs import phone_packaging, phone_packaging_state

NAME = "policy"
# openpi with random weights on one H200: three cameras of 224 px, horizon 30, 48 prompt tokens, 10 flow steps.
OPENPI = "openpi, one H200"
OPENPI_INFER_MS = {1: 31.5, 4: 59.4, 16: 158.8, 32: 293.5}
OPENPI_STEP_MS = {32: 1e3 * 32 / 32.1, 64: 1e3 * 64 / 33.3}


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    figures = [figure for mode in flags.modes.split(",") for figure in measure(flags, mode)]
    report.write(NAME, figures, report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--modes", default="", help="default state,images; state with --quick")
    parser.add_argument("--image_px", type=int, default=96)
    parser.add_argument("--infer_batches", default="1,4,16")
    parser.add_argument("--train_batches", default="", help="default 64,128; 64 with --quick")
    parser.add_argument("--repeats", type=int, default=0, help="default 20; 3 with --quick")
    flags = parser.parse_args(argv)
    flags.modes = flags.modes or ("state" if flags.quick else "state,images")
    flags.train_batches = flags.train_batches or ("64" if flags.quick else "64,128")
    flags.repeats = flags.repeats or (3 if flags.quick else 20)
    return flags


def measure(flags: argparse.Namespace, mode: str) -> list[Figure]:
    """Median milliseconds of inference and of a training step at each batch size."""
    features = make_world("phone_packaging", robot_seed=0, mode=mode, image_px=flags.image_px).features
    policy_config, prompt = policy_settings(flags.preset, mode)
    config = make_config(flags.preset, features, policy_config)
    infer_sizes, train_sizes = (_sizes(text) for text in (flags.infer_batches, flags.train_batches))
    label = f"{flags.preset}, {mode}"
    made = infer_figures(label, config, features, policy_config, prompt, infer_sizes, flags.repeats)
    return made + [train_figure(label, config, features, size, flags.repeats) for size in train_sizes]


def policy_settings(preset: str, mode: str) -> tuple[PolicyConfig, str]:
    """Settings and prompt: the simulated runs' for `nano`, openpi's sizes for the others."""
    run = phone_packaging_state.get_config() if mode == "state" else phone_packaging.get_config()
    if preset == "nano":
        return run.policy, run.task.prompt
    return PolicyConfig(preset=preset, flow_steps=10), run.task.prompt


def infer_figures(
    label: str,
    config: Pi0Config,
    features: Features,
    settings: PolicyConfig,
    prompt: str,
    sizes: Sequence[int],
    repeats: int,
) -> list[Figure]:
    """One figure for each batch size."""
    config = serving_dtype(config, None)
    params = jax.jit(lambda key: _cast(init_params(config, key), config.dtype))(jax.random.key(0))
    policy = Policy(config, params, unit_stats(features, config.action_horizon), features, settings)
    policy.warm(sizes, prompt)
    return [_infer_figure(label, policy, prompt, size, repeats) for size in sizes]


def _infer_figure(label: str, policy: Policy, prompt: str, size: int, repeats: int) -> Figure:
    states, images, objects = observations(policy.features, size, policy.config.objects_shape is None)
    times_s = call_times_s(lambda: policy.infer(states, images, objects, [prompt] * size, 0), repeats)
    figure = f"{label}: inference, batch {size}"
    return _beside_openpi(Figure(figure, 1e3 * float(np.median(times_s)), "ms"), label, OPENPI_INFER_MS.get(size))


def train_figure(label: str, config: Pi0Config, features: Features, size: int, repeats: int) -> Figure:
    """Milliseconds of one step; the state is given up from step to step, as in the learner."""
    train = TrainConfig(batch_size=size, compute_dtype=serving_dtype(config, None).dtype)
    config = serving_dtype(config, None)
    mesh, optimizer = make_mesh(), make_optimizer(train)
    rng = jax.random.key_data(jax.random.key(0))
    state = [create_state(init_params(config, jax.random.key(0)), optimizer, train, mesh, rng)]
    step = make_train_step(policy_loss(flow_loss, ModelInputs, config), optimizer, mesh, train)
    batch = put_batch(train_batch(config, features, size), mesh)

    def once() -> Any:
        state[0], metrics = step(state[0], batch)
        return state[0].step, metrics

    figure = Figure(f"{label}: training step, batch {size}", 1e3 * float(np.median(call_times_s(once, repeats))), "ms")
    return _beside_openpi(figure, label, OPENPI_STEP_MS.get(size))


def train_batch(config: Pi0Config, features: Features, size: int) -> dict[str, Any]:
    """A random batch as `BatchMaker` makes them."""
    state, images, objects = observations(features, size, config.objects_shape is None)
    horizon, length = config.action_horizon, config.max_token_len
    batch: dict[str, Any] = {"state": state, "images": images, "tokens": np.ones((size, length), np.int32)}
    batch["token_mask"] = np.ones((size, length), bool)
    batch["actions"] = np.random.default_rng(1).normal(size=(size, horizon, features.action_dim)).astype(np.float32)
    batch["action_mask"] = np.ones((size, horizon), bool)
    return batch if objects is None else batch | {"objects": objects}


def observations(
    features: Features, size: int, with_images: bool
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray | None]:
    """Random states f32 [B, S], images uint8 [B, h, w, 3] by camera, object poses f32 [B, O, P] or None."""
    rng = np.random.default_rng(0)
    cameras = features.cameras if with_images else ()
    images = {c.name: rng.integers(0, 256, (size, c.height, c.width, 3), np.uint8) for c in cameras}
    shape = features.objects_shape
    objects = None if shape is None else rng.normal(size=(size, *shape)).astype(np.float32)
    return rng.normal(size=(size, features.state_dim)).astype(np.float32), images, objects


def unit_stats(features: Features, horizon: int) -> NormStats:
    """Statistics that change nothing."""
    zeros, ones = (lambda n: np.zeros(n, np.float32)), (lambda n: np.ones(n, np.float32))
    actions, objects = (horizon, features.action_dim), features.objects_shape
    poses = (None, None) if objects is None else (zeros(objects), ones(objects))
    return NormStats(zeros(features.state_dim), ones(features.state_dim), zeros(actions), ones(actions), *poses)


def _beside_openpi(figure: Figure, label: str, openpi_ms: float | None) -> Figure:
    """openpi's figure is a peer of the full network on a GPU alone."""
    if openpi_ms is None or not label.startswith("pi0,") or jax.default_backend() != "gpu":
        return figure
    return dataclasses.replace(figure, target=f"<= {openpi_ms:.1f}", peer=OPENPI, peer_value=openpi_ms)


def _sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _cast(params: Any, dtype: str) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


if __name__ == "__main__":
    raise SystemExit(main())
