import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import InitConfig, PolicyConfig
from cel_jax.initialization import dataset, sft
from cel_jax.models import pi0, presets
from cel_jax.models.params_io import add_lora, flatten
from tests.initialization.toy_demos import BLIND, walk

POLICY = PolicyConfig(action_horizon=6, actions_per_token=3, max_token_len=4)
INIT = InitConfig(steps=60, batch_size=32, peak_lr=3e-3)


def _train(init: InitConfig, **more) -> sft.Trained:
    source = dataset.build([walk(n) for n in range(100)])
    return sft.train(source, dataset.build([walk(n) for n in range(100, 120)]), BLIND, POLICY, init, **more)


@pytest.mark.slow
def test_the_held_out_loss_falls_and_a_run_repeats() -> None:
    heard: list[sft.Losses] = []
    trained = _train(INIT, progress=heard.append)
    assert heard == trained.losses and heard[-1].step == 60
    assert [losses.step for losses in heard] == [0, 20, 40, 60]
    assert heard[-1].held_out < 0.6 * heard[0].held_out and heard[-1].train < 0.8 * heard[1].train
    again = _train(INIT)
    for one, other in zip(jax.tree.leaves(trained.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(one, other)
    onwards = _train(dataclasses.replace(INIT, steps=1, batch_size=8, peak_lr=1e-9), params=trained.params)
    assert onwards.losses[0].held_out < 0.8 * heard[0].held_out


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(sft.TrainingDiverged, match=r"lower init\.peak_lr"):
        _train(dataclasses.replace(INIT, peak_lr=1e30, warmup_steps=0))


def test_a_short_run_publishes_what_it_learnt() -> None:
    average = sft._moved({"w": np.zeros(2)}, {"w": np.ones(2)}, 0.995, np.float32(0))["w"]
    np.testing.assert_allclose(average, 0.9)
    late = sft._moved({"w": np.zeros(2)}, {"w": np.ones(2)}, 0.995, np.float32(10_000))["w"]
    np.testing.assert_allclose(late, 0.005, rtol=1e-3)


def test_the_warm_up_fits_short_runs() -> None:
    assert sft.optimizer_config(InitConfig(steps=100)).warmup_steps == 10
    assert sft.optimizer_config(InitConfig(steps=4000)).warmup_steps == 80


@pytest.mark.slow
def test_lora_trains_its_factors_and_keeps_the_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {
        name: dataclasses.replace(getattr(presets.NANO, name), lora_rank=2) for name in ("paligemma", "action_expert")
    }
    monkeypatch.setitem(presets.PRESETS, "nano_lora", dataclasses.replace(presets.NANO, **ranks))
    source, policy = dataset.build([walk(n) for n in range(30)]), dataclasses.replace(POLICY, preset="nano_lora")
    network = presets.make_config("nano_lora", BLIND, policy)
    start = add_lora(pi0.init_params(presets.without_lora(network), jax.random.key(0)), network)
    init = InitConfig(steps=6, batch_size=8, peak_lr=1e-2, warmup_steps=0, ema_decay=0.5)
    trained = flatten(sft.train(source, source, BLIND, policy, init, params=start).params)
    for name, leaf in flatten(start).items():
        if presets.frozen_path(network, name):
            np.testing.assert_array_equal(trained[name], np.asarray(leaf, trained[name].dtype), err_msg=name)
            assert trained[name].dtype == jnp.bfloat16
        elif "lora" in name:
            assert np.abs(np.asarray(trained[name]) - np.asarray(leaf)).max() > 1e-4, name
