"""Supervised fine-tuning on demonstrations: many steps in one compiled call, batches gathered on the accelerator.

The moving average of the weights is what is published. Shape letters: B batch, K held-out batches.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cel_jax.config import InitConfig, PolicyConfig, TrainConfig
from cel_jax.data.episode import Features
from cel_jax.data.normalize import NormStats
from cel_jax.fert.trainer import Frozen, cast_frozen, make_optimizer, separate, with_zeros
from cel_jax.initialization import dataset
from cel_jax.initialization.dataset import ChunkSource, TokenTable
from cel_jax.initialization.pose_guidance import PoseGuidance, find_guidance
from cel_jax.models import pi0
from cel_jax.models.pi0 import Params
from cel_jax.models.presets import Pi0Config, frozen_leaves, make_config
from cel_jax.models.tokenizer import make_tokenizer

STEPS_PER_CALL = 20
REPORTS = 20
HELD_OUT_BATCHES = 4


class TrainingDiverged(RuntimeError):
    """The loss is no longer a finite number."""


@dataclasses.dataclass(frozen=True)
class Losses:
    """The flow loss after `step` of `steps`: mean over the batches since the last report (None before the first step),
    and on held-out demonstrations (None without any).
    """

    step: int
    steps: int
    train: float | None
    held_out: float | None
    elapsed_s: float


class Trained(NamedTuple):
    """The network, the averaged weights, the statistics of the data, and the losses on the way."""

    config: Pi0Config
    params: Params
    norm_stats: NormStats
    losses: list[Losses]


@flax.struct.dataclass
class _State:
    """step: int32. params: {"policy": the network's, "pose_head": the guidance's or empty}. ema: the average of those
    leaves that are trained.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    ema: Any


@dataclasses.dataclass(frozen=True)
class _Setup:
    """What every batch needs besides data and weights."""

    config: Pi0Config
    stats: NormStats
    delta_mask: tuple[bool, ...]
    init: InitConfig
    guidance: PoseGuidance | None

    @property
    def frozen(self) -> Frozen | None:
        """Which leaves LoRA keeps; None: all are trained."""
        return frozen_leaves(self.config)

    def start(self, params: Params) -> Any:
        """What is trained: the policy's weights in float32 (bfloat16 where LoRA keeps them) and, where poses guide it,
        a fresh head."""
        policy = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)
        policy = policy if self.frozen is None else cast_frozen(policy, self.frozen)
        head = {} if self.guidance is None else self.guidance.init(jax.random.key(self.init.seed + 3))
        return {"policy": policy, "pose_head": head}

    def loss(
        self, trained: Any, source: ChunkSource, tokens: TokenTable, chunk: jax.Array, rng: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What is minimised, and the mean flow loss in it, of the chunks int32 [B]."""
        horizon = self.config.action_horizon
        inputs, actions, mask = dataset.gather(source, chunk, self.stats, self.delta_mask, horizon, tokens)
        poses = inputs.objects
        if self.config.objects_shape is None:
            inputs = dataclasses.replace(inputs, objects=None)
        flow = pi0.flow_loss(trained["policy"], self.config, inputs, actions, mask, rng)[0]
        if self.guidance is None or poses is None:
            return flow, flow
        return flow + self.guidance.loss(trained["pose_head"], trained["policy"], inputs, poses), flow


def train(
    source: ChunkSource,
    held_out: ChunkSource | None,
    features: Features,
    policy_config: PolicyConfig,
    init: InitConfig,
    progress: Callable[[Losses], None] = lambda losses: None,
    params: Params | None = None,
) -> Trained:
    """Trains for `init.steps`; `progress` hears about twenty times how the losses fall.

    params: where to start from (a released checkpoint); None: fresh weights. Raises ValueError where the data does
    not fit the network or its horizon, `TrainingDiverged` where the loss is not finite.
    """
    config = make_config(policy_config.preset, features, policy_config)
    stats = dataset.statistics(source, config.action_horizon, features.delta_mask, init.seed)
    guidance = find_guidance(config, source, init.pose_loss_weight)
    setup = _Setup(config, stats, features.delta_mask, init, guidance)
    tokenizer = make_tokenizer(policy_config.tokenizer)
    tokens = dataset.tokens_for(source, config, tokenizer, stats)
    held_tokens = None if held_out is None else dataset.tokens_for(held_out, config, tokenizer, stats)
    as_it_is = dataclasses.replace(setup, config=dataclasses.replace(config, augment=False))
    held_loss = _held_out_loss(as_it_is, held_out, held_tokens)
    optimizer = make_optimizer(optimizer_config(init), setup.frozen)
    start = setup.start(params if params is not None else pi0.init_params(config, jax.random.key(init.seed)))
    average = jax.tree.map(jnp.copy, separate(start, setup.frozen)[0])
    state = _State(jnp.int32(0), start, optimizer.init(start), average)
    call_steps = max(size for size in range(1, STEPS_PER_CALL + 1) if init.steps % size == 0)
    run = _make_steps(setup, optimizer, call_steps)
    averaged = functools.partial(_averaged, setup)
    state, losses = _drive(
        functools.partial(run, source=source, tokens=tokens),
        lambda state: held_loss(averaged(state)), state, init, call_steps, progress,
    )  # fmt: skip
    if config.objects_shape is None:
        stats = dataclasses.replace(stats, objects_mean=None, objects_std=None)
    return Trained(config, averaged(state)["policy"], stats, losses)


def _averaged(setup: _Setup, state: _State) -> Any:
    """All weights, those that are trained as their average."""
    return separate(state.params, setup.frozen)[1](state.ema)


def optimizer_config(init: InitConfig) -> TrainConfig:
    """The learner's optimiser with these steps and rates; the warm-up takes at most a tenth of the steps."""
    return TrainConfig(
        peak_lr=init.peak_lr,
        warmup_steps=min(init.warmup_steps, init.steps // 10),
        decay_steps=init.steps,
        floor_lr_fraction=init.floor_lr_fraction,
    )


def _make_steps(setup: _Setup, optimizer: optax.GradientTransformation, count: int) -> Callable[..., Any]:
    """A jitted (state, source, tokens) -> (state, loss [count]); the state's buffers are given up."""
    root = jax.random.key(setup.init.seed + 1)

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state: _State, source: ChunkSource, tokens: TokenTable) -> tuple[_State, jax.Array]:
        def one(state: _State, _: None) -> tuple[_State, jax.Array]:
            choose, noise = jax.random.split(jax.random.fold_in(root, state.step))
            chunk = jax.random.randint(choose, (setup.init.batch_size,), 0, source.num_chunks)
            trained, join = separate(state.params, setup.frozen)
            of_trained = lambda leaves: setup.loss(join(leaves), source, tokens, chunk, noise)  # noqa: E731
            (_, loss), found = jax.value_and_grad(of_trained, has_aux=True)(trained)
            grads = with_zeros(state.params, setup.frozen, found)
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            ema = _moved(state.ema, separate(params, setup.frozen)[0], setup.init.ema_decay, state.step)
            return _State(state.step + 1, params, opt_state, ema), loss

        return jax.lax.scan(one, state, None, length=count)

    return run


def _moved(ema: Any, params: Any, decay: float, step: jax.Array) -> Any:
    """The average follows quickly at first, so that a short run does not publish its random beginning."""
    kept = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: kept * old + (1 - kept) * new, ema, params)


def _held_out_loss(
    setup: _Setup, held_out: ChunkSource | None, tokens: TokenTable | None
) -> Callable[[Params], float | None]:
    """Always the same chunks, noise and times, so that two values differ by the weights alone."""
    if held_out is None or tokens is None:
        return lambda params: None
    batch = min(setup.init.batch_size, held_out.num_chunks)
    batches = min(HELD_OUT_BATCHES, held_out.num_chunks // batch)
    rng = np.random.default_rng(setup.init.seed)
    chosen = rng.choice(held_out.num_chunks, (batches, batch), replace=False).astype(np.int32)
    keys = jax.random.split(jax.random.key(setup.init.seed + 2), batches)

    @jax.jit
    def run(params: Params, source: ChunkSource, tokens: TokenTable) -> jax.Array:
        one = lambda pair: setup.loss(params, source, tokens, pair[0], pair[1])[1]  # noqa: E731
        return jnp.mean(jax.lax.map(one, (jnp.asarray(chosen), keys)))

    return lambda params: float(run(params, held_out, tokens))


def _drive(
    run: Callable[..., Any],
    held_loss: Callable[[_State], float | None],
    state: _State,
    init: InitConfig,
    call_steps: int,
    progress: Callable[[Losses], None],
) -> tuple[_State, list[Losses]]:
    """The loop on the host: it waits for the accelerator only where it reports."""
    calls = init.steps // call_steps
    every = max(1, calls // REPORTS)
    recent: list[jax.Array] = []
    found = [Losses(0, init.steps, None, held_loss(state), 0.0)]
    progress(found[0])
    begin_s = time.monotonic()
    for call in range(1, calls + 1):
        state, loss = run(state)
        recent.append(loss)
        if call % every == 0 or call in (1, calls):
            mean = _finite(float(jnp.mean(jnp.concatenate(recent))), call * call_steps, init)
            elapsed_s = time.monotonic() - begin_s
            found.append(Losses(call * call_steps, init.steps, mean, held_loss(state), elapsed_s))
            recent.clear()
            progress(found[-1])
    return state, found


def _finite(loss: float, step: int, init: InitConfig) -> float:
    if not np.isfinite(loss):
        raise TrainingDiverged(f"the loss is {loss} at step {step}; lower init.peak_lr (it is {init.peak_lr:g})")
    return loss
