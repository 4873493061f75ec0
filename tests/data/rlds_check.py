"""Runs where tensorflow-datasets is: writes the same episodes in three kinds of files and reads them with our reader.

    python -c "from tests.data import rlds_check; rlds_check.main(FOLDER)"

A builder wants a module that is not the main one.
"""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow_datasets as tfds

from cel_jax.data import rlds, rlds_tfds
from cel_jax.data.demonstrations import DemoSet, open_demos
from cel_jax.data.images import encode_jpeg

LENGTHS = (5, 8)


def steps(episode: int) -> list[dict]:
    rng = np.random.default_rng(episode)
    return [
        {
            "observation": {
                "state": rng.normal(size=3).astype(np.float32),
                "image": rng.integers(0, 255, (16, 16, 3)).astype(np.uint8),
            },
            "action": rng.normal(size=2).astype(np.float32),
            "language_instruction": f"do {episode}",
        }
        for _ in range(LENGTHS[episode])
    ]


class Lab(tfds.core.GeneratorBasedBuilder):
    """A data set as a lab would make it. encoding: of its vectors in the records."""

    VERSION = tfds.core.Version("1.0.0")
    encoding = "none"

    def _info(self):
        image = tfds.features.Image(shape=(16, 16, 3), encoding_format="jpeg")
        step = {
            "observation": {"state": self._vector(3), "image": image},
            "action": self._vector(2),
            "language_instruction": tfds.features.Text(),
        }
        features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _vector(self, size: int):
        return tfds.features.Tensor(shape=(size,), dtype=np.float32, encoding=self.encoding)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for episode in range(len(LENGTHS)):
            yield str(episode), {"steps": steps(episode)}


def write(folder: pathlib.Path, file_format: str, encoding: str) -> pathlib.Path:
    """Returns the folder of its version."""
    Lab.encoding = encoding
    builder = Lab(data_dir=str(folder), file_format=file_format)
    builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)


def check(read: DemoSet) -> None:
    """Every number as it was written, in whatever order the shards have."""
    found = {len(demo.state): demo for demo in read}
    assert set(found) == set(LENGTHS) and len(read) == len(LENGTHS), found
    for episode, length in enumerate(LENGTHS):
        wrote, demo = steps(episode), found[length]
        np.testing.assert_array_equal(demo.state, [step["observation"]["state"] for step in wrote])
        np.testing.assert_array_equal(demo.action, [step["action"] for step in wrote])
        assert demo.task_prompt == f"do {episode}"
        assert demo.image_steps.tolist() == list(range(0, length, 2)) and len(demo.images["image"]) == len(
            demo.image_steps
        )
        assert demo.images["image"][0][:2] == b"\xff\xd8", "the bytes of the file, not decoded ones"
    assert len(encode_jpeg(np.zeros((16, 16, 3), np.uint8)))


def main(place: str) -> None:
    folder = pathlib.Path(place)
    plain = write(folder / "plain", "tfrecord", "none")
    ours = open_demos(plain, image_stride_frames=2)
    check(ours)
    theirs = rlds_tfds.open_folder(
        plain, ours.features, {"image": "observation/image"}, "language_instruction", None, 2, "train"
    )
    check(theirs)
    by_length = {len(demo.state): demo for demo in theirs}
    assert all(by_length[len(demo.state)].images == demo.images for demo in ours), "both readers give the same bytes"
    for kind in (("array_record", "none"), ("tfrecord", "zlib")):
        path = write(folder / "-".join(kind), *kind)
        assert rlds.find_builder(path.parent.parent) == path
        check(open_demos(path, image_stride_frames=2))
    print("three kinds of files, read as they were written")
