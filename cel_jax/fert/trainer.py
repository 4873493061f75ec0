"""The training step: pure, sharded, with gradient accumulation. Shape letters: B samples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from cel_jax.config import TrainConfig
from cel_jax.fert import sharding

Batch = Any  # a pytree of arrays with leading axis B
LossFn = Callable[[Any, Batch, jax.Array], tuple[jax.Array, jax.Array]]
Frozen = Callable[[str], bool]
TrainStep = Callable[["TrainState", Batch], tuple["TrainState", dict[str, jax.Array]]]


@flax.struct.dataclass
class TrainState:
    """All that a resumed run needs. step: int32. rng: uint32 [2], constant; a step folds its number into it."""

    step: jax.Array
    params: Any
    opt_state: Any
    ema_params: Any | None
    rng: jax.Array


def make_schedule(config: TrainConfig) -> optax.Schedule:
    """Linear warm-up from peak / (warmup + 1), cosine to `floor_lr_fraction` of it at `decay_steps`, then held."""
    if config.decay_steps <= config.warmup_steps:
        raise ValueError(f"decay_steps {config.decay_steps} must exceed warmup_steps {config.warmup_steps}")
    return optax.warmup_cosine_decay_schedule(
        init_value=config.peak_lr / (config.warmup_steps + 1),
        peak_value=config.peak_lr,
        warmup_steps=config.warmup_steps,
        decay_steps=config.decay_steps,
        end_value=config.peak_lr * config.floor_lr_fraction,
    )


def make_optimizer(config: TrainConfig, frozen: Frozen | None = None) -> optax.GradientTransformation:
    """AdamW (0.9, 0.95) behind a global-norm clip. Leaves whose path `frozen` accepts get no update and no moments."""
    adamw = optax.adamw(make_schedule(config), b1=0.9, b2=0.95, weight_decay=config.weight_decay)
    optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)
    if frozen is None:
        return optimizer
    labels = lambda params: _map_paths(lambda path, _: "frozen" if frozen(path) else "trained", params)  # noqa: E731
    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def create_state(
    params: Any, optimizer: optax.GradientTransformation, config: TrainConfig, mesh: Mesh, rng: jax.Array
) -> TrainState:
    """A state at step 0, placed on the mesh. `params` (float32 masters) are copied."""

    def build(params: Any, rng: jax.Array) -> TrainState:
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        return TrainState(jnp.int32(0), params, optimizer.init(params), ema, rng)

    shapes = jax.eval_shape(build, params, rng)
    return jax.jit(build, out_shardings=sharding.state_sharding(shapes, mesh))(params, rng)


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    config: TrainConfig,
    frozen: Frozen | None = None,
) -> jax.stages.Wrapped:
    """A jitted `(state, batch) -> (state, metrics)`; the state's buffers are given up to the new state.

    loss_fn: (params, batch, rng) -> (loss, per_sample [B]). What is minimised is the mean of `per_sample` over the
    whole batch, weighted by `batch["weight"]` [B] if it has one: exactly that of one large batch, however it is split.
    The batch is split into parts of `micro_batch_size` samples; each part gets a random key of its own.
    Metrics: float32 scalars loss, grad_norm (before the clip), param_norm, update_norm, learning_rate, and `refused`:
    1 where loss or a norm is not finite. Such a step changes nothing: the state comes back as it was.
    """
    schedule = make_schedule(config)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.rng, state.step)
        loss, grads = _mean_gradient(loss_fn, state.params, batch, key, _parts(batch, mesh, config), mesh, frozen)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = _moved_average(state.ema_params, params, config.ema_decay, frozen)
        metrics = _metrics(loss, grads, params, updates) | {"learning_rate": schedule(state.step)}
        finite = jnp.isfinite(jnp.stack(list(metrics.values()))).all()
        new = _chosen(finite, TrainState(state.step + 1, params, opt_state, ema, state.rng), state)
        metrics |= {"refused": 1.0 - finite}
        return jax.lax.with_sharding_constraint(new, sharding.state_sharding(new, mesh)), metrics

    return jax.jit(step, donate_argnums=0)


def _chosen(accept: jax.Array, new: TrainState, old: TrainState) -> TrainState:
    return jax.tree.map(lambda after, before: jnp.where(accept, after, before), new, old)


def _metrics(loss: jax.Array, grads: Any, params: Any, updates: Any) -> dict[str, jax.Array]:
    norms = {"grad_norm": grads, "param_norm": params, "update_norm": updates}
    return {"loss": loss} | {name: optax.tree.norm(tree) for name, tree in norms.items()}


def _moved_average(ema: Any | None, params: Any, decay: float, frozen: Frozen | None) -> Any | None:
    """Frozen leaves stay as they are: averaged with themselves in bfloat16 they would drift."""
    if ema is None:
        return None
    old, join = separate(ema, frozen)
    new, _ = separate(params, frozen)
    return join([decay * before + (1 - decay) * after for before, after in zip(old, new, strict=True)])


def _parts(batch: Batch, mesh: Mesh, config: TrainConfig) -> int:
    """Into how many parts the batch is split. Raises ValueError where sizes do not divide."""
    size = len(jax.tree.leaves(batch)[0])
    part = config.micro_batch_size or size
    if size % part or part % mesh.size:
        raise ValueError(
            f"a batch of {size} cannot be split into parts of {part} over {mesh.size} devices; "
            "batch_size must be a multiple of micro_batch_size, and that a multiple of the devices"
        )
    return size // part


def _mean_gradient(
    loss_fn: LossFn, params: Any, batch: Batch, key: jax.Array, parts: int, mesh: Mesh, frozen: Frozen | None
) -> tuple[jax.Array, Any]:
    """Weighted mean loss of the whole batch and its gradient, accumulated in float32; zeros for frozen leaves."""
    trained, join = separate(params, frozen)

    def total(trained: Any, part: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, per_sample = loss_fn(join(trained), part, key)
        weight = part.get("weight") if isinstance(part, dict) else None
        weight = jnp.ones_like(per_sample) if weight is None else weight
        return jnp.sum(per_sample * weight), jnp.sum(weight)

    def gradient(index: Any, part: Batch) -> Any:
        grad_of = jax.value_and_grad(total, has_aux=True)
        (loss, weight), grads = grad_of(trained, part, jax.random.fold_in(key, index))
        return loss, weight, grads

    loss, weight, grads = _summed(gradient, trained, batch, parts, mesh)
    weight = jnp.maximum(weight, 1e-9)  # a batch without weight has no gradient, not NaN
    return loss / weight, with_zeros(params, frozen, [grad / weight for grad in grads])


def _summed(gradient: Callable[[Any, Batch], Any], trained: Any, batch: Batch, parts: int, mesh: Mesh) -> Any:
    """Over all parts; a single part needs no accumulator, which would be as large as the weights."""
    if parts == 1:
        return gradient(0, batch)

    def add(carry: Any, indexed: tuple[jax.Array, Batch]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, gradient(*indexed)), None

    start = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, trained))
    return jax.lax.scan(add, start, (jnp.arange(parts), _split(batch, parts, mesh)))[0]


def _split(batch: Batch, parts: int, mesh: Mesh) -> Batch:
    """[B, ..] -> [parts, B / parts, ..], part k taking every parts-th sample, so that no sample changes its device."""
    spec = jax.sharding.PartitionSpec(None, sharding.AXES)

    def split(rows: jax.Array) -> jax.Array:
        rows = jnp.swapaxes(rows.reshape(rows.shape[0] // parts, parts, *rows.shape[1:]), 0, 1)
        return jax.lax.with_sharding_constraint(rows, jax.sharding.NamedSharding(mesh, spec))

    return jax.tree.map(split, batch)


def with_zeros(params: Any, frozen: Frozen | None, grads: Sequence[Any]) -> Any:
    """The gradient of all parameters: `grads` of the trained leaves, zeros for the frozen ones."""
    return separate(jax.tree.map(jnp.zeros_like, params), frozen)[1](grads)


def separate(params: Any, frozen: Frozen | None) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The leaves that are trained, and a function that puts such leaves back among the frozen ones."""
    named: list[tuple[Any, Any]]
    structure: Any
    named, structure = jax.tree_util.tree_flatten_with_path(params)
    kept = [frozen is not None and frozen(_name(path)) for path, _ in named]

    def join(trained: Sequence[Any]) -> Any:
        rest = iter(trained)
        return structure.unflatten([leaf if keep else next(rest) for keep, (_, leaf) in zip(kept, named, strict=True)])

    return [leaf for keep, (_, leaf) in zip(kept, named, strict=True) if not keep], join


def cast_frozen(params: Any, frozen: Frozen, dtype: Any = jnp.bfloat16) -> Any:
    """Frozen leaves in `dtype`: without moments and masters they need no float32."""
    return _map_paths(lambda path, leaf: leaf.astype(dtype) if frozen(path) else leaf, params)


def _map_paths(function: Callable[[str, Any], Any], tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(_name(path), leaf), tree)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
