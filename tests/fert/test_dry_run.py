"""The plan's state is what training really holds; activations grow with batch and with what is kept."""

from __future__ import annotations

import dataclasses
import functools

import jax
import pytest

from cel_jax.config import TrainConfig
from cel_jax.fert import sharding
from cel_jax.fert.dry_run import activation_bytes, describe, plan
from cel_jax.fert.trainer import cast_frozen, create_state, make_optimizer
from cel_jax.models.presets import frozen_path, make_config
from tests.models.robots import POLICY, features, noisy_params, tiny
from tests.models.test_packed import with_rank

TRAIN = TrainConfig(batch_size=8, ema_decay=0.9)


@pytest.mark.parametrize("config", [tiny("images"), with_rank(tiny("images"))], ids=["full", "lora"])
def test_state_is_counted_exactly(config) -> None:  # type: ignore[no-untyped-def]
    frozen = functools.partial(frozen_path, config)
    optimizer = make_optimizer(TRAIN, frozen if config.lora else None)
    mesh = sharding.make_mesh(1, jax.devices()[:1])
    params = cast_frozen(noisy_params(config), frozen)
    state = create_state(params, optimizer, TRAIN, mesh, jax.random.PRNGKey(0))
    made = plan(config, TRAIN, devices=1, memory_bytes=10**9)
    for name, tree in (("weights", state.params), ("optimiser", state.opt_state), ("moving average", state.ema_params)):
        assert made.parts[name] == sum(leaf.nbytes for leaf in jax.tree.leaves(tree)), name
    assert (made.trained < made.parameters) == config.lora


def test_full_pi0_on_one_and_on_eight() -> None:
    config = make_config("pi0", features("images"), dataclasses.replace(POLICY, actions_per_token=1, action_horizon=30))
    train = TrainConfig(batch_size=32)
    one = plan(config, train, 1, int(141e9))
    assert one.parameters == one.trained == 3_238_048_528
    assert one.parts["weights"] == 4 * one.parameters and one.parts["optimiser"] == pytest.approx(8 * one.parameters)
    eight = plan(config, dataclasses.replace(train, fsdp_devices=8), 8, int(24e9))
    assert eight.batch == 4 and eight.parts["weights"] < one.parts["weights"] / 7.5
    assert one.fits and not plan(config, train, 1, int(48e9)).fits
    assert "does NOT fit" in describe(plan(config, train, 1, int(48e9))) and "3,238,048,528" in describe(one)


def test_activations_by_policy_and_batch() -> None:
    config = make_config("small", features("images"), POLICY)
    kept = {remat: activation_bytes(dataclasses.replace(config, remat=remat), 2)[0] for remat in
            ("all", "gate", "wide", "dots", "off")}  # fmt: skip
    assert list(kept.values()) == sorted(kept.values()) and len(set(kept.values())) == 5
    assert activation_bytes(config, 4)[0] == 2 * activation_bytes(config, 2)[0]


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="fsdp_devices=3 does not divide 8"):
        plan(tiny(), TrainConfig(fsdp_devices=3), 8, 10**9)
    with pytest.raises(ValueError, match="a batch of 6 in parts of 6 over 4"):
        plan(tiny(), TrainConfig(batch_size=6), 4, 10**9)
