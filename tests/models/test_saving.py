"""A policy's folder: exact, small, and loud about every fault."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.config import PolicyConfig
from cel_jax.models import params_io, saving
from cel_jax.models.presets import make_config
from tests.models.robots import POLICY, features, noisy_params, norm_stats, observations, tiny_policy


def save(policy, folder, dtype="float32"):
    parts = policy.config, policy.params, policy.norm_stats, policy.features, policy.policy_config
    saving.save_policy(folder, *parts, dtype)


def rewrite(folder, change):
    """Changes the stored leaves and makes the checksum fit again."""
    path = folder / "params.npz"
    with np.load(path) as stored:
        flat = {name: stored[name] for name in stored.files}
    change(flat)
    with path.open("wb") as file:
        np.savez(file, **flat)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["params.npz"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("mode", ["state", "images"])
def test_float32_round_trip_is_exact(mode: str, tmp_path) -> None:
    policy = tiny_policy(mode)
    save(policy, tmp_path / "p")
    save(policy, tmp_path / "p")  # replaces
    loaded = saving.load_policy(tmp_path / "p")
    assert (loaded.config, loaded.features) == (policy.config, policy.features)
    assert loaded.policy_config == policy.policy_config
    batch = observations(mode, 2)
    np.testing.assert_array_equal(loaded.infer(*batch, seed=1), policy.infer(*batch, seed=1))
    assert os.listdir(tmp_path) == ["p"]


def test_bfloat16_rounds_once_and_is_half_as_large(tmp_path) -> None:
    policy = tiny_policy()
    save(policy, tmp_path / "p", "bfloat16")
    loaded = saving.load_policy(tmp_path / "p")
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), policy.params)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, rounded)
    assert saving.load_policy(tmp_path / "p", "bfloat16").config.dtype == "bfloat16"
    assert np.isfinite(saving.load_policy(tmp_path / "p", "bfloat16").infer(*observations("state", 1), seed=0)).all()


@pytest.mark.parametrize("mode", ["state", "images"])
def test_nano_fits_in_eight_megabytes(mode: str, tmp_path) -> None:
    robot = features(mode)
    config = make_config("nano", robot, PolicyConfig(actions_per_token=3))
    params = noisy_params(config)
    saving.save_policy(tmp_path / "p", config, params, norm_stats(robot, 30), robot, PolicyConfig(actions_per_token=3))
    assert sum(path.stat().st_size for path in (tmp_path / "p").iterdir()) < 8e6
    saving.load_policy(tmp_path / "p")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda flat: flat.pop("state_proj/bias"), "missing state_proj/bias"),
        (lambda flat: flat.update(extra=np.zeros(3, np.float32)), "surplus extra"),
        (lambda flat: flat.update({"state_proj/bias": np.zeros(3, np.float32)}), "misshapen state_proj/bias"),
    ],
)
def test_every_leaf_is_checked(change, message, tmp_path) -> None:
    save(tiny_policy(), tmp_path / "p")
    rewrite(tmp_path / "p", change)
    with pytest.raises(ValueError, match=message):
        saving.load_policy(tmp_path / "p")


def test_a_damaged_file_is_named(tmp_path) -> None:
    save(tiny_policy(), tmp_path / "p")
    data = bytearray((tmp_path / "p" / "params.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "p" / "params.npz").write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        saving.load_policy(tmp_path / "p")
    with pytest.raises(FileNotFoundError, match="holds no policy"):
        saving.load_policy(tmp_path / "none")


def test_a_wrong_tree_is_never_written(tmp_path) -> None:
    policy = tiny_policy()
    policy.params.pop("object_proj")
    with pytest.raises(ValueError, match="missing object_proj/bias"):
        save(policy, tmp_path / "p")
    assert os.listdir(tmp_path) == []


def _orbax(path, tree):
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


@pytest.mark.parametrize("suffix", [True, False])
def test_openpi_tree_with_and_without_value(suffix: bool, tmp_path) -> None:
    config = tiny_policy().config
    params = noisy_params(config)
    tree = jax.tree.map(lambda leaf: {"value": leaf} if suffix else leaf, params)
    _orbax(tmp_path / "params", {"params": tree})
    restored = params_io.restore_openpi(tmp_path, config)
    jax.tree.map(np.testing.assert_array_equal, restored, params)
    half = params_io.restore_openpi(tmp_path / "params", config, "bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {np.dtype(jnp.bfloat16)}


def test_openpi_tree_that_does_not_fit_names_the_leaf(tmp_path) -> None:
    config = tiny_policy().config
    params = noisy_params(config)
    del params["state_proj"]
    _orbax(tmp_path / "params", {"params": params})
    with pytest.raises(ValueError, match="missing state_proj/kernel"):
        params_io.restore_openpi(tmp_path, config)
    with pytest.raises(FileNotFoundError, match="_METADATA"):
        params_io.restore_openpi(tmp_path / "none", config)


def test_quantiles_as_mean_and_deviation(tmp_path) -> None:
    low, high = [-1.0, 2.0], [3.0, 2.5]
    entry = {"mean": [0, 0], "std": [1, 1], "q01": low, "q99": high}
    text = json.dumps({"norm_stats": {"state": entry, "actions": entry}})
    (tmp_path / "norm_stats.json").write_text(text)
    stats = params_io.load_openpi_stats(tmp_path, quantiles=True)
    x = np.asarray([0.5, 2.2])
    ours = (x - stats.state_mean) / (stats.state_std + 1e-6)
    theirs = (x - low) / (np.subtract(high, low) + 1e-6) * 2 - 1
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert params_io.load_openpi_stats(tmp_path).state_mean.tolist() == [0, 0]
    assert POLICY.flow_steps == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(value: float, tmp_path) -> None:
    policy = tiny_policy()
    policy.params["state_proj"]["bias"] = policy.params["state_proj"]["bias"].at[3].set(value)
    save(policy, tmp_path / "p")
    with pytest.raises(ValueError, match="1 leaves are not finite: state_proj/bias; take an older checkpoint"):
        saving.load_policy(tmp_path / "p")


def test_masters_are_float32_whatever_is_computed_in(tmp_path) -> None:
    save(tiny_policy(dtype="bfloat16"), tmp_path / "p")
    policy = saving.load_policy(tmp_path / "p", "bfloat16", weights="float32")
    assert policy.config.dtype == "bfloat16"
    assert {leaf.dtype for leaf in jax.tree.leaves(policy.params)} == {np.dtype(np.float32)}
    assert policy.without_params().params == {} and policy.without_params().features == policy.features


def test_a_checkpoint_of_another_architecture_is_refused_before_it_is_read(tmp_path, monkeypatch) -> None:
    config = tiny_policy().config
    _orbax(tmp_path / "params", {"params": noisy_params(dataclasses.replace(config, pi05=True))})
    monkeypatch.setattr(params_io, "_read", lambda *args: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"missing action_time_mlp_in/bias .*surplus .*time_mlp_in"):
        params_io.restore_openpi(tmp_path, config)
