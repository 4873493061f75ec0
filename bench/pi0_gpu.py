"""The full pi0 on one GPU beside openpi: sampling with its parts, full fine-tuning, LoRA's peak memory.

    python -m bench.pi0_gpu --parts=lora,sample --trace        (about 5 minutes on one H200, most of it compiling)
    python -m bench.pi0_gpu --parts=train                      (about 8 minutes)
    python -m bench.pi0_gpu --quick                            (a tiny network, anywhere)

Random weights, three 224 px cameras, horizon 30, 48 prompt tokens, 10 flow steps; every call is waited for. What does
not fit in memory is printed and left out. `--train` names variants as batch:remat:attention (see models/remat.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")

import jax
import jax.numpy as jnp
import numpy as np

from bench import kernels, report
from bench.report import Figure
from bench.timing import call_times_s
from cel_jax.config import PolicyConfig, TrainConfig
from cel_jax.data.episode import CameraSpec, Features
from cel_jax.fert.batches import policy_loss
from cel_jax.fert.sharding import make_mesh, put_batch
from cel_jax.fert.trainer import create_state, make_optimizer, make_train_step
from cel_jax.models.inputs import ModelInputs, stack_images
from cel_jax.models.packed import denoise, encode_prefix, pack, sample_packed
from cel_jax.models.packed_vision import see
from cel_jax.models.params_io import flatten, unflatten
from cel_jax.models.pi0 import flow_loss, param_shapes
from cel_jax.models.presets import Pi0Config, frozen_leaves, make_config
from cel_jax.models.weights_wire import snapshot, to_bytes

NAME = "pi0_gpu"
OPENPI = "openpi, one H200"
OPENPI_SAMPLE_MS = {1: 31.5, 4: 59.4, 16: 158.8, 32: 293.5}
TARGET_SAMPLE_MS = {1: 14, 4: 30, 16: 100}
OPENPI_SAMPLES_PER_S, TARGET_SAMPLES_PER_S = 33.3, 42
OPENPI_LORA_GB, TARGET_LORA_GB = 22.5, 20
PEAK_TFLOPS = 989
STEPS = 10
REPEATS = 10


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    say(f"{report.machine()}; XLA_FLAGS={os.environ.get('XLA_FLAGS', '')}")
    failed = [part for part in flags.parts.split(",") if not measure(flags, part, report.command(NAME, argv))]
    return 1 if failed else 0


def measure(flags: argparse.Namespace, part: str, command: str) -> bool:
    """One part, each figure printed when it is known; a file of its own. False where a variant failed."""
    figures, whole = [], True
    for figure in {"lora": lora, "sample": sample, "train": train, "publish": publish}[part](flags):
        if isinstance(figure, Figure):
            figures.append(figure)
            say(report.table([figure]).splitlines()[1])
        else:
            say(f"  FAILED {figure}")
            whole = False
    if figures:
        report.write(f"{NAME}_{part}", figures, command)
    return whole


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("--parts", default="lora,sample,train")
    parser.add_argument("--batches", default="", help="of sampling; default 1,4,16")
    parser.add_argument("--attention", default="", help="of sampling; default xla,cudnn on a GPU")
    parser.add_argument("--train", default="", help="batch:remat:attention,...")
    parser.add_argument("--lora", default="", help="batch:micro batch:attention")
    parser.add_argument("--trace", action="store_true", help="print the kernels that take the time")
    parser.add_argument("--preset", default="")
    flags = parser.parse_args(argv)
    gpu = jax.default_backend() == "gpu"
    flags.preset = flags.preset or ("nano" if flags.quick else "pi0")
    flags.batches = flags.batches or ("1,2" if flags.quick else "1,4,16")
    flags.attention = flags.attention or ("xla,cudnn" if gpu else "xla")
    many = "32:wide:xla,32:wide:cudnn,32:dots:xla,48:gate:xla,64:gate:xla,32:all:xla"
    flags.train = flags.train or ("4:wide:xla,4:all:xla" if flags.quick else many)
    flags.lora = flags.lora or ("4:2:xla" if flags.quick else "32:4:xla")
    return flags


def say(text: str) -> None:
    print(text, flush=True)


def bench_config(preset: str) -> Pi0Config:
    """Three cameras, horizon 30; the small networks see smaller images."""
    px = 96 if preset == "nano" else 224
    cameras = tuple(CameraSpec(name, px, px) for name in ("base", "left_wrist", "right_wrist"))
    robot = Features("bench", 32, 32, cameras, None, 30.0, (False,) * 32)
    return make_config(preset, robot, PolicyConfig(preset=preset, action_horizon=30, max_token_len=48))


def draw_params(config: Pi0Config, dtype_of: Callable[[str], Any]) -> Any:
    """Random weights of natural scale, leaf by leaf: nothing but the result is ever held."""
    shapes = flatten(param_shapes(config))
    return unflatten({name: _draw(leaf.shape, dtype_of(name), i) for i, (name, leaf) in enumerate(shapes.items())})


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw(shape: tuple[int, ...], dtype: Any, seed: int) -> jax.Array:
    fan_in = shape[-2] if len(shape) > 1 else 400
    return jax.random.normal(jax.random.key(seed, impl="rbg"), shape, dtype) * fan_in**-0.5


def inputs_of(config: Pi0Config, batch: int) -> ModelInputs:
    """A random batch on the device, all cameras present, all prompt tokens valid."""
    rng, px = np.random.default_rng(0), config.image_px
    return jax.device_put(
        ModelInputs(
            images={key: rng.integers(0, 256, (batch, px, px, 3), np.uint8) for key in config.image_keys},
            image_masks={},
            objects=None,
            tokens=rng.integers(4, config.vocab_size, (batch, config.max_token_len)).astype(np.int32),
            token_mask=np.ones((batch, config.max_token_len), bool),
            state=rng.normal(size=(batch, config.state_width)).astype(np.float32),
        )
    )


def attempt(name: str, figures: Callable[[], Iterator[Figure]]) -> Iterator[Figure | str]:
    """The figures of a variant; one that fails is told, and the others are still measured."""
    start_s = time.monotonic()
    try:
        yield from figures()
    except Exception as error:
        kind = "does not fit" if "RESOURCE_EXHAUSTED" in str(error) else "failed"
        yield f"{name} {kind}: {type(error).__name__}: {str(error)[:400]}"
    say(f"  {name}: {time.monotonic() - start_s:.0f} s with compiling")


def sample(flags: argparse.Namespace) -> Iterator[Figure | str]:
    """Sampling at every batch size and attention, with its parts at the ends."""
    config = bench_config(flags.preset)
    params = draw_params(config, lambda _: jnp.dtype(config.dtype))
    packed = jax.jit(pack, static_argnums=1)(params, config)
    del params
    sizes = [int(word) for word in flags.batches.split(",")]
    for attention, size in itertools.product(flags.attention.split(","), sizes):
        variant = dataclasses.replace(config, attention=attention)
        ends = size in (sizes[0], sizes[-1])
        yield from attempt(
            f"sample {size}:{attention}", functools.partial(_sample_figures, flags, packed, variant, size, ends)
        )


def _sample_figures(
    flags: argparse.Namespace, packed: Any, config: Pi0Config, size: int, parts: bool
) -> Iterator[Figure]:
    yield _sample_figure(flags, packed, config, size)
    if parts:
        yield from _parts(flags, packed, config, size)
    if parts and flags.trace:
        run = functools.partial(jax.jit(sample_packed, static_argnums=(1, 4)), packed, config)
        noise = jnp.zeros((size, config.action_horizon, config.action_dim))
        say(kernels.table(lambda: run(inputs_of(config, size), noise, STEPS)))


def _sample_figure(flags: argparse.Namespace, packed: Any, config: Pi0Config, size: int) -> Figure:
    noise = jnp.zeros((size, config.action_horizon, config.action_dim))
    run = functools.partial(jax.jit(sample_packed, static_argnums=(1, 4)), packed, config)
    inputs = inputs_of(config, size)
    value = _median_ms(lambda: run(inputs, noise, STEPS))
    figure = Figure(f"{flags.preset}: sample_actions, batch {size}, {config.attention}", value, "ms")
    say(f"  batch {size}: {prefix_flop(config) * size / value / 1e9:.0f} TFLOP/s of vision and prefix over the whole")
    if flags.preset != "pi0" or size not in TARGET_SAMPLE_MS:
        return figure
    peer = OPENPI_SAMPLE_MS[size]
    return dataclasses.replace(figure, target=f"<= {TARGET_SAMPLE_MS[size]}", peer=OPENPI, peer_value=peer)


def _parts(flags: argparse.Namespace, packed: Any, config: Pi0Config, size: int) -> Iterator[Figure]:
    """Vision alone, prefix with vision, and one denoising step."""
    inputs, noise = inputs_of(config, size), jnp.zeros((size, config.action_horizon, config.action_dim))
    prefix = jax.jit(encode_prefix, static_argnums=1)
    cache, valid = prefix(packed, config, inputs)
    steps = jax.jit(denoise, static_argnums=(1, 6))
    times = {
        "vision": _median_ms(lambda: _vision(packed, config, inputs)),
        "vision and prefix": _median_ms(lambda: prefix(packed, config, inputs)),
        "a denoising step": _median_ms(lambda: steps(packed, config, cache, valid, inputs.state, noise, STEPS)) / STEPS,
    }
    name = f"{flags.preset}: batch {size}, {config.attention}"
    yield from (Figure(f"{name}: {part}", value, "ms") for part, value in times.items())


@functools.partial(jax.jit, static_argnums=1)
def _vision(packed: Any, config: Pi0Config, inputs: ModelInputs) -> jax.Array:
    images, _ = stack_images(config, inputs)
    flat = images.reshape(-1, *images.shape[2:])
    assert config.siglip is not None
    return see(packed.rest["img"], packed.vision, config.siglip, flat, config.dtype, config.attention)


def _median_ms(call: Callable[[], Any]) -> float:
    return 1e3 * float(np.median(call_times_s(call, REPEATS)))


def publish(flags: argparse.Namespace) -> Iterator[Figure | str]:
    """A version of the float32 weights: what the learner waits for, and what a thread does beside it."""
    config = bench_config(flags.preset)
    params = draw_params(config, lambda _: jnp.float32)
    waited_ms = _median_ms(lambda: snapshot(params, config.dtype))
    taken = snapshot(params, config.dtype)
    start_s = time.monotonic()
    block = to_bytes(taken, config.dtype)
    name = f"{flags.preset}: publishing {len(block) / 1e9:.2f} GB"
    yield Figure(f"{name}: the learner waits", waited_ms / 1e3, "s", target="<= 1.5")
    yield Figure(f"{name}: fetched and laid out, in a thread", time.monotonic() - start_s, "s")


def train(flags: argparse.Namespace) -> Iterator[Figure | str]:
    """Samples per second of full fine-tuning, one figure for each variant that fits."""
    for variant in flags.train.split(","):
        yield from attempt(f"train {variant}", functools.partial(_train_variant, flags, variant))


def _train_variant(flags: argparse.Namespace, variant: str) -> Iterator[Figure]:
    size, remat, attention = variant.split(":")
    config = dataclasses.replace(bench_config(flags.preset), remat=remat, attention=attention)
    yield _train_figure(flags.preset, variant, _measured_rate(flags, config, int(size), 0))


def _train_figure(preset: str, variant: str, rate: float) -> Figure:
    figure = Figure(f"{preset}: full fine-tuning, {variant}", rate, "samples/s")
    target = f">= {TARGET_SAMPLES_PER_S}"
    if preset != "pi0":
        return figure
    return dataclasses.replace(figure, target=target, peer=OPENPI, peer_value=OPENPI_SAMPLES_PER_S)


def lora(flags: argparse.Namespace) -> Iterator[Figure | str]:
    """Peak memory of LoRA fine-tuning. Run it first: the allocator's peak only rises."""
    yield from attempt(f"lora {flags.lora}", functools.partial(_lora_figures, flags))


def _lora_figures(flags: argparse.Namespace) -> Iterator[Figure]:
    size, micro, attention = flags.lora.split(":")
    config = dataclasses.replace(bench_config(flags.preset), remat="all", attention=attention)
    paligemma = dataclasses.replace(config.paligemma, lora_rank=16)
    expert = dataclasses.replace(config.action_expert, lora_rank=32)
    config = dataclasses.replace(config, paligemma=paligemma, action_expert=expert)
    rate = _measured_rate(flags, config, int(size), int(micro))
    name = f"{flags.preset}: LoRA, batch {size} in parts of {micro}, {attention}"
    figure = Figure(f"{name}: peak memory", _stats().get("peak_bytes_in_use", 0) / 1e9, "GB")
    if flags.preset == "pi0":
        peer = "openpi's README, more than"
        figure = dataclasses.replace(figure, target=f"<= {TARGET_LORA_GB}", peer=peer, peer_value=OPENPI_LORA_GB)
    yield figure
    yield Figure(f"{name}: speed", rate, "samples/s")


def _measured_rate(flags: argparse.Namespace, config: Pi0Config, size: int, micro: int) -> float:
    settings = TrainConfig(batch_size=size, micro_batch_size=micro)
    frozen = frozen_leaves(config)
    mesh, optimizer = make_mesh(1, jax.devices()[:1]), make_optimizer(settings, frozen)
    state = [_start(config, settings, optimizer, mesh, frozen)]
    batch = put_batch(_batch(config, size), mesh)
    step = make_train_step(policy_loss(flow_loss, ModelInputs, config), optimizer, mesh, settings, frozen)

    def once() -> Any:
        state[0], metrics = step(state[0], batch)
        return metrics

    seconds = float(np.median(call_times_s(once, REPEATS)))
    _say_memory(config, size, seconds)
    if flags.trace:
        say(kernels.table(once))
    return size / seconds


def _start(config: Pi0Config, settings: TrainConfig, optimizer: Any, mesh: Any, frozen: Any) -> Any:
    """A state of random weights. With LoRA the frozen ones are drawn in bfloat16 from the start."""
    if frozen is None:
        return create_state(
            draw_params(config, lambda _: jnp.float32), optimizer, settings, mesh, jax.random.PRNGKey(0)
        )
    dtype_of = lambda path: jnp.bfloat16 if frozen(path) else jnp.float32  # noqa: E731
    return create_state(draw_params(config, dtype_of), optimizer, settings, mesh, jax.random.PRNGKey(0))


def _batch(config: Pi0Config, size: int) -> dict[str, Any]:
    inputs = inputs_of(config, size)
    shape = (size, config.action_horizon, config.action_dim)
    return {
        "images": inputs.images,
        "tokens": inputs.tokens,
        "token_mask": inputs.token_mask,
        "state": inputs.state,
        "actions": np.random.default_rng(1).normal(size=shape).astype(np.float32),
        "action_mask": np.ones(shape[:2], bool),
    }


def _say_memory(config: Pi0Config, size: int, seconds: float) -> None:
    """Utilisation counts the products once: what rematerialisation repeats does not count."""
    used = 3 * forward_flop(config) * size / seconds / 1e12
    stats = _stats()
    peak, now = stats.get("peak_bytes_in_use", 0) / 1e9, stats.get("bytes_in_use", 0) / 1e9
    say(
        f"  batch {size}, remat {config.remat}, {config.attention}: {seconds * 1e3:.0f} ms a step, {used:.0f} TFLOP/s "
        f"= {100 * used / PEAK_TFLOPS:.0f}% of {PEAK_TFLOPS}; memory now {now:.1f} GB, peak so far {peak:.1f} GB"
    )


def _stats() -> dict[str, int]:
    return jax.devices()[0].memory_stats() or {}


def prefix_flop(config: Pi0Config) -> float:
    """Products of vision and prefix for one sample, two operations each."""
    vision = config.siglip
    tokens = len(config.image_keys) * config.tokens_per_image
    tower = 0.0
    if vision is not None:
        layer = 4 * vision.width**2 + 2 * vision.width * vision.mlp_dim
        tower = 2.0 * tokens * vision.depth * (layer + 2 * config.tokens_per_image * vision.width)
    return tower + _expert_flop(config.paligemma, config.prefix_len, config.prefix_len)


def forward_flop(config: Pi0Config) -> float:
    """One sample's prefix and suffix in one pass."""
    suffix = config.num_action_tokens + (not config.pi05)
    return prefix_flop(config) + _expert_flop(config.action_expert, suffix, config.prefix_len + suffix)


def _expert_flop(expert: Any, tokens: int, keys: int) -> float:
    heads = expert.num_heads * expert.head_dim
    weights = expert.width * (2 * heads + 2 * expert.num_kv_heads * expert.head_dim + 3 * expert.mlp_dim)
    return 2.0 * tokens * expert.depth * (weights + 2 * keys * heads)


if __name__ == "__main__":
    raise SystemExit(main())
