"""RLDS in files that need tensorflow-datasets: read where it is, and asked for by name where it is not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from cel_jax.data.demonstrations import DatasetError, open_demos
from cel_jax.recovery.stations import interpreter
from tests.data import tiny_datasets as tiny

ROOT = Path(__file__).resolve().parents[2]
HERE = importlib.util.find_spec("tensorflow_datasets") is not None


@pytest.mark.skipif(HERE, reason="tensorflow-datasets is installed")
@pytest.mark.parametrize(("file", "old", "new"), [
    ("dataset_info.json", "tfrecord", "array_record"), ("features.json", '"none"', '"zlib"'),
])  # fmt: skip
def test_without_the_package_it_is_asked_for(tmp_path: Path, file: str, old: str, new: str) -> None:
    folder = tiny.write_rlds(tmp_path, [4, 3])
    (folder / file).write_text((folder / file).read_text().replace(old, new))
    with pytest.raises(DatasetError, match=r"not in plain TFRecords.*cel-jax\[rlds\]"):
        open_demos(folder)


def test_a_split_that_is_not_there_is_named_in_every_format(tmp_path: Path) -> None:
    folder = tiny.write_rlds(tmp_path, [4])
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["name"] = "validation"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DatasetError, match=r"no split 'train'.*validation"):
        open_demos(folder)


@pytest.mark.slow
def test_three_kinds_of_files_are_read_as_tensorflow_datasets_wrote_them(tmp_path: Path) -> None:
    """In the store's environment, which has TensorFlow anyway."""
    try:
        python = interpreter("reverb")
    except FileNotFoundError:
        pytest.skip("no environment with tensorflow-datasets: make setup")
    if subprocess.run([python, "-c", "import tensorflow_datasets"], capture_output=True).returncode:
        pytest.skip(f"{python} has no tensorflow-datasets")
    code = f"from tests.data import rlds_check; rlds_check.main({str(tmp_path)!r})"
    done = subprocess.run(
        [python, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "three kinds of files" in done.stdout, done.stderr[-3000:]
