"""The training step: sharded equals single, split equals whole, resumed equals uninterrupted."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from cel_jax.config import TrainConfig
from cel_jax.fert import sharding, trainer
from tests.fert import toy


def start(config=toy.CONFIG, mesh=None, frozen=None):
    mesh = mesh or sharding.make_mesh(1, jax.devices()[:1])
    optimizer = trainer.make_optimizer(config, frozen)
    state = trainer.create_state(toy.params(), optimizer, config, mesh, jax.random.PRNGKey(1))
    return state, trainer.make_train_step(toy.loss, optimizer, mesh, config, frozen), mesh


def run(state, step, mesh, seeds, noise=0.0, change=lambda batch: batch):
    metrics = None
    for seed in seeds:
        state, metrics = step(state, sharding.put_batch(change(toy.batch(seed, noise)), mesh))
    return state, jax.device_get(metrics)


def assert_close(a, b, atol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), atol=atol, rtol=1e-5), a, b)


def moments(state):
    """A tenth of the clipped gradient after one step: unlike AdamW's update it does not magnify rounding."""
    return state.opt_state[1][0].mu


def test_schedule_is_the_papers():
    schedule = trainer.make_schedule(TrainConfig())
    assert schedule(80) == pytest.approx(2.5e-5) and 0 < schedule(0) < 1e-6
    assert schedule(10_000) == pytest.approx(2.5e-6) and schedule(50_000) == pytest.approx(2.5e-6)
    assert trainer.make_schedule(TrainConfig(warmup_steps=0))(0) == pytest.approx(2.5e-5)
    with pytest.raises(ValueError, match="decay_steps 5 must exceed warmup_steps 80"):
        trainer.make_schedule(TrainConfig(decay_steps=5))


def test_the_step_equals_optax_written_out():
    config = dataclasses.replace(toy.CONFIG, ema_decay=0.9)
    state, step, mesh = start(config)
    batch, before = toy.batch(0), toy.params()
    new, metrics = step(state, sharding.put_batch(batch, mesh))
    grads = jax.grad(lambda p: toy.loss(p, batch, jax.random.PRNGKey(0))[0])(before)
    assert metrics["grad_norm"] == pytest.approx(float(optax.tree.norm(grads)), rel=1e-5)
    scale = min(1.0, 1.0 / float(optax.tree.norm(grads)))
    # The first AdamW update is lr * g / (|g| + eps), whatever b1 and b2 are.
    want = jax.tree.map(lambda p, g: p - (1e-2 / 4) * (scale * g / (abs(scale * g) + 1e-8) + 1e-10 * p), before, grads)
    assert_close(new.params, want, 1e-6)
    assert_close(new.ema_params, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, before, want), 1e-6)
    assert metrics["learning_rate"] == pytest.approx(1e-2 / 4)
    assert metrics["param_norm"] == pytest.approx(float(optax.tree.norm(want)), rel=1e-5)
    moved = jax.tree.map(lambda a, b: a - b, want, before)
    assert metrics["update_norm"] == pytest.approx(float(optax.tree.norm(moved)), rel=1e-3)


@pytest.mark.parametrize("micro", [4, 8, 16])
def test_accumulation_equals_one_large_batch_with_masks_and_weights(micro):
    def weighted(batch):
        return batch | {"weight": np.arange(32, dtype=np.float32) % 5}

    for change in (lambda batch: batch, weighted):
        config = dataclasses.replace(toy.CONFIG, micro_batch_size=micro)
        (got, split), (want, whole) = run(*start(config), [0], change=change), run(*start(), [0], change=change)
        assert_close(moments(got), moments(want), 1e-7)
        assert_close(split, whole, 1e-6)


def test_the_loss_is_the_weighted_mean_over_the_whole_batch():
    weight = np.arange(32, dtype=np.float32) % 5
    _, per_sample = toy.loss(toy.params(), toy.batch(0), jax.random.PRNGKey(0))
    config = dataclasses.replace(toy.CONFIG, micro_batch_size=8)
    _, metrics = run(*start(config), [0], change=lambda batch: batch | {"weight": weight})
    assert metrics["loss"] == pytest.approx(float((per_sample * weight).sum() / weight.sum()), rel=1e-5)


def test_samples_without_weight_do_not_matter():
    def spoiled(batch):
        batch["x"][5:] = 1e3
        return batch | {"weight": (np.arange(32) < 5).astype(np.float32)}

    def clean(batch):
        return batch | {"weight": (np.arange(32) < 5).astype(np.float32)}

    got, want = (run(*start(), [0], change=change)[0] for change in (spoiled, clean))
    assert_close(moments(got), moments(want), 1e-7)


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="a batch of 32 cannot be split into parts of 5"):
        run(*start(dataclasses.replace(toy.CONFIG, micro_batch_size=5)), [0])


def test_resume_is_bit_for_bit():
    state, step, mesh = start()
    whole, _ = run(state, step, mesh, range(6), noise=1.0)
    state, step, mesh = start()
    half, _ = run(state, step, mesh, range(3), noise=1.0)
    kept = jax.tree.map(lambda x: np.array(x), half)
    blank, step, mesh = start()
    again = jax.tree.map(lambda old, new: jax.device_put(new, old.sharding), blank, kept)
    resumed, _ = run(again, step, mesh, range(3, 6), noise=1.0)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed), jax.device_get(whole))


def test_frozen_leaves_keep_their_values_and_have_no_moments():
    frozen = lambda path: path.startswith("in/")  # noqa: E731
    state, step, mesh = start(frozen=frozen)
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.opt_state)]
    assert (64, 256) not in shapes and (256, 3) in shapes
    new, _ = run(state, step, mesh, range(2))
    np.testing.assert_array_equal(new.params["in"]["kernel"], toy.params()["in"]["kernel"])
    assert np.abs(np.asarray(new.params["out"]["kernel"]) - toy.params()["out"]["kernel"]).max() > 1e-4


@pytest.mark.parametrize("micro", [0, 8])
def test_a_step_that_is_not_finite_changes_nothing(micro):
    state, step, mesh = start(dataclasses.replace(toy.CONFIG, micro_batch_size=micro))
    state, metrics = run(state, step, mesh, [0])
    assert metrics["refused"] == 0
    kept = jax.device_get(state)

    def spoiled(batch):
        batch["x"][13, 5] = np.nan
        return batch

    after, metrics = run(state, step, mesh, [1], change=spoiled)
    assert metrics["refused"] == 1 and not np.isfinite(metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after), kept)
    _, metrics = run(after, step, mesh, [2])
    assert metrics["refused"] == 0


def test_the_state_is_given_up():
    state, step, mesh = start()
    run(state, step, mesh, [0])
    assert state.params["in"]["kernel"].is_deleted()


SHARDED = """
import dataclasses, jax, numpy as np
from cel_jax.fert import sharding
from tests.fert import toy
from tests.fert.test_trainer import assert_close, moments, run, start
assert len(jax.devices()) == 8
for micro in (0, 16):
    config = dataclasses.replace(toy.CONFIG, micro_batch_size=micro)
    single, one = run(*start(config), [0], noise=1.0)
    state, step, mesh = start(config, sharding.make_mesh(2))
    cut = {"in/kernel": state.params["in"]["kernel"], "mu": state.opt_state[1][0].mu["in"]["kernel"]}
    for name, leaf in cut.items():
        assert leaf.sharding.shard_shape(leaf.shape) == (64, 128), (name, leaf.sharding)
    many, other = run(state, step, mesh, [0], noise=1.0)
    assert many.params["in"]["kernel"].sharding.shard_shape((64, 256)) == (64, 128)
    assert_close(moments(many), moments(single), 1e-7)
    assert_close(one, other, 1e-6)
    many, other = run(many, step, mesh, range(1, 5), noise=1.0)
    single, one = run(single, *start(config)[1:], range(1, 5), noise=1.0)
    assert_close(many.params, single.params, 1e-4)
    assert_close(one, other, 1e-4)
print("same")
"""


@pytest.mark.slow
def test_eight_devices_equal_one():
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
    done = subprocess.run([sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "same", done.stderr[-3000:]


def test_bytes_per_device_counts_cut_leaves_once():
    devices = jax.devices()[:1] * 4
    mesh = jax.sharding.AbstractMesh((2, 2), sharding.AXES)
    tree = {"big": jax.ShapeDtypeStruct((64, 256), np.float32), "small": jax.ShapeDtypeStruct((7,), np.float32)}
    assert len(devices) == 4 and sharding.bytes_per_device(tree, mesh) == 64 * 256 * 4 // 2 + 28
