"""Out to openpi's layout and back; restored straight to devices; training checkpoints."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.models import params_io
from cel_jax.models.openpi_export import ExportError, export_openpi
from cel_jax.models.pi0 import param_shapes
from tests.models.robots import features, noisy_params, norm_stats, tiny

CONFIG = tiny("images", actions_per_token=1)
STATS = norm_stats(features("images"))


def export(folder: pathlib.Path, config=CONFIG, **changes):  # type: ignore[no-untyped-def]
    params = noisy_params(config)
    export_openpi(folder, config, params, STATS, "lab/arm", **changes)
    return params


def test_round_trip_of_weights_and_statistics(tmp_path: pathlib.Path) -> None:
    params = export(tmp_path / "out")
    back = params_io.restore_openpi(tmp_path / "out", CONFIG)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    stats = params_io.load_openpi_stats(tmp_path / "out" / "assets" / "lab/arm")
    np.testing.assert_array_equal(stats.action_std, STATS.action_std)
    assert params_io.stored_names(tmp_path / "out") == sorted(params_io.flatten(params))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_the_file_has_openpis_keys(tmp_path: pathlib.Path) -> None:
    import orbax.checkpoint as ocp

    export(tmp_path / "out", dtype="bfloat16")
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(tmp_path / "out" / "params").item_metadata.tree
    flat = params_io.flatten(tree)
    assert all(name.startswith("params/") and name.endswith("/value") for name in flat)
    assert {str(leaf.dtype) for leaf in flat.values()} == {"bfloat16"}


def test_quantiles_of_pi05_give_the_same_numbers(tmp_path: pathlib.Path) -> None:
    export(tmp_path / "out", tiny("images", actions_per_token=1, pi05=True))
    folder = tmp_path / "out" / "assets" / "lab/arm"
    stats = params_io.load_openpi_stats(folder, quantiles=True)
    np.testing.assert_allclose(stats.state_mean, STATS.state_mean, atol=1e-6)
    np.testing.assert_allclose(stats.action_std, STATS.action_std, atol=1e-6)
    assert json.loads((folder / "norm_stats.json").read_text())["norm_stats"]["state"]["q01"] is not None


def test_straight_to_the_device_in_the_asked_dtype(tmp_path: pathlib.Path) -> None:
    params = export(tmp_path / "out")
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: place, param_shapes(CONFIG))
    back = params_io.restore_openpi(tmp_path / "out", CONFIG, "bfloat16", shardings)
    assert all(isinstance(leaf, jax.Array) and leaf.sharding == place for leaf in jax.tree.leaves(back))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.bfloat16)), back, params)


def test_raw_weights_of_a_training_checkpoint(tmp_path: pathlib.Path) -> None:
    import orbax.checkpoint as ocp

    params = noisy_params(CONFIG)
    state = {"step": np.int32(7), "params": jax.tree.map(lambda leaf: {"value": leaf}, params), "opt_state": {"0": {}}}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "7" / "train_state", state)
    back = params_io.restore_openpi(tmp_path / "7" / "train_state", CONFIG)
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_misfits_are_named(tmp_path: pathlib.Path) -> None:
    export(tmp_path / "out")
    wider = dataclasses.replace(CONFIG, action_dim=9)
    with pytest.raises(ValueError, match=r"misshapen action_in_proj/kernel: expected \(9, 32\), got \(5, 32\)"):
        params_io.restore_openpi(tmp_path / "out", wider)
    with pytest.raises(ValueError, match=r"surplus .*state_proj/kernel"):
        params_io.restore_openpi(tmp_path / "out", dataclasses.replace(CONFIG, pi05=True))


def test_refusals(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ExportError, match="object poses"):
        export_openpi(tmp_path / "a", tiny("state"), {}, STATS, "arm")
    with pytest.raises(ExportError, match="one action in a token"):
        export_openpi(tmp_path / "a", tiny("images"), {}, STATS, "arm")
    with pytest.raises(ExportError, match="asset id"):
        export_openpi(tmp_path / "a", CONFIG, {}, STATS, "../arm")
    export(tmp_path / "out")
    with pytest.raises(ExportError, match="not empty"):
        export(tmp_path / "out")
