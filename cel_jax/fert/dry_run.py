"""What training takes, before anything is allocated: parameters, bytes per device for every part, whether it fits.

State and gradients are exact (the shapes that training makes, cut as training cuts them). What the forward pass keeps
and the largest layer's working set are counted from the network's sizes; the compiler's own need differs by some tens
of per cent, so `fits` leaves SLACK free. Shape letters as in models/gemma.py; F mlp_dim, W tower width.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from cel_jax.config import TrainConfig
from cel_jax.fert import sharding
from cel_jax.fert.trainer import cast_frozen, make_optimizer
from cel_jax.models.inputs import example_inputs
from cel_jax.models.pi0 import param_shapes
from cel_jax.models.presets import GemmaConfig, Pi0Config, frozen_leaves, frozen_path

SLACK = 0.1  # of the memory: the allocator's holes and the compiler's temporaries
LOGIT_BYTES = 4 + 2  # float32 logits and bfloat16 probabilities


@dataclasses.dataclass(frozen=True)
class Plan:
    """parts: name -> bytes on one device. batch: samples that one device holds at a time."""

    parameters: int
    trained: int
    parts: dict[str, int]
    devices: int
    fsdp: int
    batch: int
    memory_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= (1 - SLACK) * self.memory_bytes


def plan(config: Pi0Config, train: TrainConfig, devices: int, memory_bytes: int) -> Plan:
    """Raises ValueError where the batch cannot be split over the devices."""
    if devices % train.fsdp_devices:
        raise ValueError(f"fsdp_devices={train.fsdp_devices} does not divide {devices} devices")
    mesh = AbstractMesh((devices // train.fsdp_devices, train.fsdp_devices), sharding.AXES)
    batch = _samples(train, devices)
    params, trained = _param_trees(config)
    parts = _state_bytes(config, train, params, trained, mesh)
    kept, working = activation_bytes(config, batch)
    parts |= {"kept activations": kept, "largest layer at work": working, "batch": _batch_bytes(config, train, devices)}
    return Plan(_count(params), _count(trained), parts, devices, train.fsdp_devices, batch, memory_bytes)


def _samples(train: TrainConfig, devices: int) -> int:
    part = train.micro_batch_size or train.batch_size
    if train.batch_size % part or part % devices:
        raise ValueError(
            f"a batch of {train.batch_size} in parts of {part} over {devices} devices does not divide; batch_size must "
            "be a multiple of micro_batch_size, and that a multiple of the devices"
        )
    return part // devices


def _param_trees(config: Pi0Config) -> tuple[Any, Any]:
    """All parameters with their dtypes, and those that are trained."""
    frozen = functools.partial(frozen_path, config)
    params = jax.eval_shape(lambda tree: cast_frozen(tree, frozen), param_shapes(config))
    named, _ = jax.tree_util.tree_flatten_with_path(params)
    names = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in named]
    return params, {name: leaf for name, leaf in names if not frozen(name)}


def _state_bytes(config: Pi0Config, train: TrainConfig, params: Any, trained: Any, mesh: Any) -> dict[str, int]:
    optimizer = make_optimizer(train, frozen_leaves(config))
    size = functools.partial(sharding.bytes_per_device, mesh=mesh)
    parts = {
        "weights": size(params),
        "optimiser": size(jax.eval_shape(optimizer.init, params)),
        "gradient": size(trained),
        "update": size(trained),
    }
    if train.ema_decay:
        parts["moving average"] = size(params)
    if train.micro_batch_size and train.micro_batch_size != train.batch_size:
        parts["accumulated gradient"] = size(trained)
    if mesh.shape["fsdp"] > 1:
        parts["gathered layer"] = _layer_bytes(config)
    return parts


def _layer_bytes(config: Pi0Config) -> int:
    """The largest gathered weights at one time: a layer of both experts, in the computation's dtype."""
    experts = (config.paligemma, config.action_expert)
    return sum(_weights(expert) for expert in experts) * jnp.dtype(config.dtype).itemsize


def _weights(c: GemmaConfig) -> int:
    heads = c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
    return c.width * (heads + 3 * c.mlp_dim)


def activation_bytes(config: Pi0Config, batch: int) -> tuple[int, int]:
    """(what the forward pass keeps, the largest layer's values in the backward pass), of `batch` samples."""
    item = jnp.dtype(config.dtype).itemsize
    suffix = config.num_action_tokens + (not config.pi05)
    tokens = config.prefix_len + suffix
    experts = ((config.paligemma, config.prefix_len), (config.action_expert, suffix))
    logits = config.paligemma.num_heads * tokens**2 * LOGIT_BYTES if config.attention == "xla" else 0
    kept = sum(count * expert.depth * _kept(expert, config.remat) for expert, count in experts) * item
    kept += config.paligemma.depth * logits if config.remat == "off" else 0
    working = sum(count * _kept(expert, "off") for expert, count in experts) * item + 2 * logits
    tower_kept, tower_working = _tower_bytes(config, item)
    return batch * (kept + tower_kept), batch * max(working, tower_working)


def _kept(c: GemmaConfig, remat: str) -> int:
    """Numbers per token and layer; a layer's input is kept always."""
    products = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim + c.num_heads * c.head_dim + c.width
    more = {
        "all": 0,
        "gate": c.mlp_dim,
        "wide": 2 * c.mlp_dim,
        "dots": 2 * c.mlp_dim + products,
        "off": 4 * c.mlp_dim + 2 * products + 3 * c.width,
    }
    return c.width + more[remat]


def _tower_bytes(config: Pi0Config, item: int) -> tuple[int, int]:
    c = config.siglip
    if c is None:
        return 0, 0
    count, cameras = config.tokens_per_image, len(config.image_keys)
    logits = c.num_heads * count**2 * LOGIT_BYTES if config.attention == "xla" else 0
    products = 6 * c.width + c.mlp_dim
    layer = cameras * (count * (2 * products + 2 * c.mlp_dim) * item + logits)
    if config.remat == "off":
        return c.depth * layer, layer
    kept = c.width + (0 if config.remat == "all" else products)
    return cameras * count * c.depth * kept * item, layer


def _batch_bytes(config: Pi0Config, train: TrainConfig, devices: int) -> int:
    """Images as uint8; two batches are on the device, the present and the next."""
    inputs = jax.eval_shape(lambda: example_inputs(config, 1))
    images = sum(math.prod(image.shape) for image in inputs.images.values())
    numbers = 4 * (config.action_horizon * config.action_dim + config.state_width + config.max_token_len)
    return 2 * (images + numbers) * train.batch_size // devices


def _count(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def describe(made: Plan) -> str:
    """A table for people."""
    lines = [f"parameters {made.parameters:,}, trained {made.trained:,}"]
    lines.append(f"{made.devices} devices, weights cut over {made.fsdp}; {made.batch} samples on each at a time")
    lines += [f"  {name:<24} {size / 1e9:9.2f} GB" for name, size in made.parts.items()]
    lines.append(f"  {'total on one device':<24} {made.total_bytes / 1e9:9.2f} GB of {made.memory_bytes / 1e9:.2f} GB")
    lines.append(f"a published version: {2 * made.parameters / 1e9:.2f} GB in bfloat16")
    verdict = "it fits" if made.fits else f"it does NOT fit with {SLACK:.0%} left free: " + advice(made)
    return "\n".join([*lines, verdict])


def advice(made: Plan) -> str:
    """What to change first, by the largest part."""
    largest = max(made.parts, key=lambda name: made.parts[name])
    if largest in ("kept activations", "largest layer at work", "batch"):
        return "lower train.micro_batch_size, or take remat `all`"
    return "raise train.fsdp_devices, set train.ema_decay=0, or take a LoRA preset"
