"""RLDS data sets in other files than plain TFRecords (ArrayRecord, encoded tensors), through tensorflow-datasets.

Images stay the bytes that they are. Shape letters: T frames, S state numbers, A action numbers.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from cel_jax.data import demonstrations as demo
from cel_jax.data.episode import Features


def open_folder(
    path: pathlib.Path,
    features: Features,
    cameras: Mapping[str, str],
    prompt: str | None,
    transform: demo.Transform | None,
    stride: int,
    split: str,
) -> demo.DemoSet:
    """cameras: name -> leaf below `steps/`; prompt: leaf below `steps/` or None.

    Raises `DatasetError` where tensorflow-datasets is missing, or cannot read the folder.
    """
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        raise demo.DatasetError(
            f"{path}: not in plain TFRecords, which alone are read without tensorflow-datasets; "
            "pip install 'cel-jax[rlds]'"
        ) from error
    try:
        builder = tfds.builder_from_directory(str(path))
        total = builder.info.splits[split].num_examples
    except Exception as error:  # tfds raises whatever the file format's library raises
        raise demo.DatasetError(f"{path}: tensorflow-datasets cannot open it: {_one_line(error)}") from error
    reader = _Reader(path, features, cameras, prompt, transform, stride)
    return demo.DemoSet(path, features, total, (), lambda: reader.read_all(builder, split))


class _Reader:
    """Episodes of one builder, with fixed options."""

    def __init__(
        self,
        path: pathlib.Path,
        features: Features,
        cameras: Mapping[str, str],
        prompt: str | None,
        transform: demo.Transform | None,
        stride: int,
    ) -> None:
        self._path, self._features, self._cameras, self._prompt = path, features, cameras, prompt
        self._transform, self._stride = transform, stride

    def read_all(self, builder: Any, split: str) -> Iterator[demo.Demonstration]:
        episodes = iter(self._episodes(builder, split))
        number = 0
        while (episode := self._next(episodes, number)) is not None:
            yield episode
            number += 1

    def _episodes(self, builder: Any, split: str) -> Iterable[Any]:
        """ArrayRecord is a source of its own in tensorflow-datasets; everything else is a tf.data data set there."""
        import tensorflow_datasets as tfds

        skip = _nested({leaf: tfds.decode.SkipDecoding() for leaf in self._cameras.values()})
        decoders = {"steps": skip} if skip else None
        if builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD:
            return builder.as_data_source(split=split, decoders=decoders)
        return tfds.as_numpy(builder.as_dataset(split=split, decoders=decoders))

    def _next(self, episodes: Iterator[Any], number: int) -> demo.Demonstration | None:
        where = f"{self._path.parent.name}#{number}"
        try:
            episode = next(episodes, None)
            steps = None if episode is None else list(episode["steps"])
        except Exception as error:
            raise demo.DatasetError(f"{self._path}, episode {number}: {_one_line(error)}") from error
        return None if steps is None else self._demonstration(where, steps)

    def _demonstration(self, where: str, steps: list[Mapping[str, Any]]) -> demo.Demonstration:
        state = np.stack([np.asarray(_leaf(step, "observation/state"), np.float32) for step in steps])
        action = np.stack([np.asarray(_leaf(step, "action"), np.float32) for step in steps])
        demo.check_arrays(where, state, action, self._features.state_dim, self._features.action_dim)
        shown = np.arange(0, len(steps), self._stride, dtype=np.int32) if self._cameras else np.zeros(0, np.int32)
        images = {
            name: tuple(demo.recode(where, name, i, _leaf(steps[i], leaf), self._transform) for i in shown.tolist())
            for name, leaf in self._cameras.items()
        }
        prompt = _leaf(steps[0], self._prompt).decode() if self._prompt else ""
        return demo.Demonstration(where, prompt, state, action, shown, images, self._features.fps_hz)


def _leaf(step: Mapping[str, Any], name: str) -> Any:
    for part in name.split("/"):
        step = step[part]
    return step


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """`observation/image` -> {"observation": {"image": ...}}."""
    found: dict[str, Any] = {}
    for name, value in leaves.items():
        *above, last = name.split("/")
        place = found
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
