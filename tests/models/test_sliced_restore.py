"""Leaves read block by block equal leaves read whole: on one device, cut over several, and in every stored form."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from cel_jax.data.normalize import NormStats
from cel_jax.models import sliced_restore
from cel_jax.models.openpi_export import export_openpi
from cel_jax.models.params_io import flatten, on_one_device, restore_openpi
from cel_jax.models.presets import Pi0Config
from tests.models.robots import noisy_params, tiny

CONFIG = tiny("images", actions_per_token=1)


def checkpoint(folder: pathlib.Path, config: Pi0Config = CONFIG) -> pathlib.Path:
    ones = np.ones(7, np.float32)
    stats = NormStats(ones, ones, ones[:5], ones[:5])
    export_openpi(folder, config, noisy_params(config), stats, "odd")
    return folder


@pytest.mark.parametrize("block_bytes", [1 << 27, 500, 1])
@pytest.mark.parametrize("codec", ["streamed", "tensorstore"])
def test_blocks_equal_the_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, codec: str
) -> None:
    folder = checkpoint(tmp_path / "c")
    want = flatten(restore_openpi(folder, CONFIG))
    monkeypatch.setattr(sliced_restore, "BLOCK_BYTES", block_bytes)
    if codec == "tensorstore":
        opened = sliced_restore._Stored.open
        plain = lambda *args: sliced_restore.dataclasses.replace(opened(*args), codec=None)  # noqa: E731
        monkeypatch.setattr(sliced_restore._Stored, "open", plain)
    got = flatten(restore_openpi(folder, CONFIG, "float32", on_one_device(CONFIG)))
    assert got.keys() == want.keys()
    for name, leaf in got.items():
        assert isinstance(leaf, jax.Array)
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)


def test_a_leaf_in_several_chunks_and_without_compression(tmp_path: pathlib.Path) -> None:
    """As a sharded training run of another program stores it: chunks that do not divide the leaf."""
    import tensorstore

    (tmp_path / "_METADATA").write_text("{}")
    leaf = np.random.default_rng(0).normal(size=(7, 5, 6)).astype(np.float32)
    for compressor in (None, {"id": "zstd", "level": 1}, {"id": "blosc"}):
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": f"{tmp_path}/params.w/"},
            "metadata": {"shape": [7, 5, 6], "chunks": [3, 2, 6], "dtype": "<f4", "compressor": compressor},
        }
        tensorstore.open(spec, create=True, delete_existing=True).result().write(leaf).result()
        stored = sliced_restore._Stored.open(tmp_path, "params.w")
        assert stored.codec == {None: "", "zstd": "zstd", "blosc": None}[(compressor or {}).get("id")]
        out = np.full(leaf.shape, np.nan, np.float32)
        for start, block in stored.blocks():
            out[tuple(slice(at, at + size) for at, size in zip(start, block.shape, strict=True))] = block
        np.testing.assert_array_equal(out, leaf)


def test_a_truncated_file_is_an_error_that_names_the_leaf(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "c")
    largest = max((folder / "params").rglob("d/*"), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[: len(data) // 2])
    for block_bytes in (1 << 27, 500):
        monkeypatch.setattr(sliced_restore, "BLOCK_BYTES", block_bytes)
        for places in (None, on_one_device(CONFIG)):
            with pytest.raises(ValueError, match=r"leaf .+/value cannot be read, copy the checkpoint anew"):
                restore_openpi(folder, CONFIG, "float32", places)


SHARDED = """
import sys, jax, numpy as np
from jax.sharding import NamedSharding
from cel_jax.fert.sharding import leaf_spec, make_mesh
from cel_jax.models import params_io, sliced_restore
from cel_jax.models.pi0 import param_shapes
from tests.models.test_sliced_restore import CONFIG
sliced_restore.BLOCK_BYTES = 900
from cel_jax.fert import sharding
sharding.MIN_SHARDED_SIZE = 64
want = params_io.flatten(params_io.restore_openpi(sys.argv[1], CONFIG))
for fsdp in (1, 2, 8):
    mesh = make_mesh(fsdp)
    places = jax.tree.map(lambda leaf: NamedSharding(mesh, leaf_spec(leaf.shape, fsdp)), param_shapes(CONFIG))
    got = params_io.flatten(params_io.restore_openpi(sys.argv[1], CONFIG, "float32", places))
    for name, leaf in got.items():
        np.testing.assert_array_equal(np.asarray(leaf), want[name], err_msg=name)
        assert len(leaf.addressable_shards) == 8
cut = [leaf for leaf in got.values() if leaf.addressable_shards[0].data.shape != leaf.shape]
assert len(cut) > 10, len(cut)
print("same")
"""


@pytest.mark.slow
def test_shards_of_eight_devices(tmp_path: pathlib.Path) -> None:
    folder = checkpoint(tmp_path / "c")
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
    command = [sys.executable, "-c", SHARDED, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "same", done.stderr[-3000:]


def test_what_was_copied_without_its_data_is_named(tmp_path: pathlib.Path) -> None:
    folder = checkpoint(tmp_path / "c")
    for path in (folder / "params").rglob("d"):
        shutil.rmtree(path)
    with pytest.raises(ValueError, match="cannot be read, copy the checkpoint anew"):
        restore_openpi(folder, CONFIG)
