"""RLDS data sets as tensorflow-datasets writes them: TFRecord shards beside features.json and dataset_info.json.

Plain TFRecords, which nearly all are, need no TensorFlow; what is in other files goes to rlds_tfds.py.

Shape letters: T frames, S state numbers, A action numbers.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cel_jax.data import demonstrations as demo
from cel_jax.data import rlds_tfds, tfrecord
from cel_jax.data.episode import CameraSpec, Features

STATE, ACTION, PREFIX = "observation/state", "action", "steps/"
PROMPTS = ("language_instruction", "observation/natural_language_instruction", "natural_language_instruction")


def find_builder(path: pathlib.Path) -> pathlib.Path | None:
    """The folder with features.json: `path`, or the only one up to two levels below (name/version)."""
    for pattern in ("features.json", "*/features.json", "*/*/features.json"):
        found = sorted(file.parent for file in path.glob(pattern))
        if len(found) > 1:
            raise demo.DatasetError(f"{path}: several data sets; name one of {[str(f) for f in found]}")
        if found:
            return found[0]
    return None


def open_folder(
    path: pathlib.Path,
    cameras: tuple[str, ...] | None = None,
    transform: demo.Transform | None = None,
    image_stride_frames: int = 1,
    delta_mask: tuple[bool, ...] | None = None,
    split: str = "train",
    fps_hz: float = 0.0,
) -> demo.DemoSet:
    """See `open_demos`. RLDS does not record a frame rate: `fps_hz` is 0 (unknown) unless it is given.

    Shards that are not there are named and skipped with their number of episodes; a damaged one is an error.
    """
    info, leaves = _read_json(path / "dataset_info.json"), _leaves(_read_json(path / "features.json"))
    features = _features(path, str(info.get("name", path.name)), leaves, cameras, delta_mask, fps_hz)
    if not _is_plain(info, leaves):
        keys = {name: _below_steps(key) for name, key in _camera_keys(features, leaves).items()}
        prompt = _prompt_key(leaves)
        return rlds_tfds.open_folder(
            path, features, keys, _below_steps(prompt) if prompt else None, transform, image_stride_frames, split
        )
    shards = _shards(path, info, split)
    missing = [(file, count) for file, count in shards if not file.is_file()]
    skipped = tuple(demo.Skipped(file.name, "shard missing", count) for file, count in missing)
    usable = [(file, count) for file, count in shards if file.is_file()]
    if not usable:
        raise demo.DatasetError(
            f"{path}: none of the {len(shards)} shards of split {split!r} is there: {shards[0][0].name}"
        )
    reader = _Reader(features, leaves, transform, image_stride_frames)
    return demo.DemoSet(path, features, sum(n for _, n in shards), skipped, lambda: _read_all(reader, usable))


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise demo.DatasetError(f"{path}: cannot be read: {error}") from error


def _leaves(node: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Flattens features.json into the names that the records use: `steps/observation/state` -> its description."""
    if "sequence" in node:
        return _leaves(node["sequence"]["feature"], path)
    if "featuresDict" not in node:
        return {path: node}
    found: dict[str, dict[str, Any]] = {}
    for name, child in node["featuresDict"]["features"].items():
        found |= _leaves(child, f"{path}/{name}" if path else name)
    return found


def _is_plain(info: dict[str, Any], leaves: dict[str, dict[str, Any]]) -> bool:
    """Whether the records can be read as they are."""
    encodings = {leaves[PREFIX + key]["tensor"].get("encoding", "none") for key in (STATE, ACTION)}
    return info.get("fileFormat", "tfrecord") == "tfrecord" and encodings == {"none"}


def _camera_keys(features: Features, leaves: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Camera -> its leaf."""
    return {
        name: next(key for key in leaves if key in (PREFIX + name, f"{PREFIX}observation/{name}"))
        for name in features.camera_names
    }


def _prompt_key(leaves: dict[str, dict[str, Any]]) -> str | None:
    return next((PREFIX + key for key in PROMPTS if PREFIX + key in leaves), None)


def _below_steps(key: str) -> str:
    return key.removeprefix(PREFIX)


def _shape(node: dict[str, Any], kind: str) -> tuple[int, ...]:
    return tuple(int(n) for n in node[kind].get("shape", {}).get("dimensions", []))


def _features(
    path: pathlib.Path,
    name: str,
    leaves: dict[str, dict[str, Any]],
    cameras: tuple[str, ...] | None,
    delta_mask: tuple[bool, ...] | None,
    fps_hz: float,
) -> Features:
    dims = []
    for key in (STATE, ACTION):
        node = leaves.get(PREFIX + key, {})
        if "tensor" not in node or len(_shape(node, "tensor")) != 1:
            raise demo.DatasetError(
                f"{path}: steps/{key} must be a vector in features.json; found {node.get('tensor')} among "
                f"{sorted(leaves)}"
            )
        dims.append(_shape(node, "tensor")[0])
    specs = [_camera(key, node) for key, node in sorted(leaves.items()) if "image" in node and key.startswith(PREFIX)]
    chosen = demo.choose_cameras(path, cameras, tuple(spec.name for spec in specs))
    by_name = {spec.name: spec for spec in specs}
    mask = delta_mask or (False,) * dims[1]
    return Features(name, dims[0], dims[1], tuple(by_name[c] for c in chosen), None, fps_hz, mask)


def _camera(key: str, node: dict[str, Any]) -> CameraSpec:
    height, width = (*_shape(node, "image"), 0, 0)[:2]
    return CameraSpec(key.removeprefix(PREFIX).removeprefix("observation/"), height, width)


def _shards(path: pathlib.Path, info: dict[str, Any], split: str) -> list[tuple[pathlib.Path, int]]:
    """(file, number of episodes) of a split's shards."""
    by_name = {entry["name"]: entry for entry in info.get("splits", [])}
    if split not in by_name:
        raise demo.DatasetError(f"{path}: no split {split!r}; dataset_info.json has {sorted(by_name)}")
    entry, name, kind = by_name[split], info["name"], "tfrecord"
    counts = [int(n) for n in entry["shardLengths"]]
    template = entry.get("filepathTemplate", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
    fill = {"DATASET": name, "SPLIT": split, "FILEFORMAT": kind}
    place = [f"{i:05d}-of-{len(counts):05d}" for i in range(len(counts))]
    return [(path / template.format(**fill, SHARD_X_OF_Y=p), n) for p, n in zip(place, counts, strict=True)]


def _read_all(reader: _Reader, shards: list[tuple[pathlib.Path, int]]) -> Iterator[demo.Demonstration]:
    for file, count in shards:
        number = 0
        for number, data in enumerate(_records(file), 1):
            yield reader.read(f"{file.name}#{number - 1}", data)
        if number != count:
            raise demo.DatasetError(
                f"{file}: {number} episodes, dataset_info.json announces {count}; the file is partial"
            )


def _records(file: pathlib.Path) -> Iterator[bytes]:
    try:
        yield from tfrecord.read_records(file)
    except tfrecord.DamagedRecord as error:
        raise demo.DatasetError(str(error)) from error


class _Reader:
    """Turns records into demonstrations with fixed options."""

    def __init__(
        self,
        features: Features,
        leaves: dict[str, dict[str, Any]],
        transform: demo.Transform | None,
        stride: int,
    ) -> None:
        self._features, self._transform, self._stride = features, transform, stride
        self._prompt_key, self._camera_keys = _prompt_key(leaves), _camera_keys(features, leaves)

    def read(self, where: str, data: bytes) -> demo.Demonstration:
        """One record -> one episode; raises `DatasetError` naming file and record."""
        try:
            example = tfrecord.parse_example(data)
        except ValueError as error:
            raise demo.DatasetError(f"{where}: {error}") from error
        state = self._vectors(where, example, STATE, self._features.state_dim)
        action = self._vectors(where, example, ACTION, self._features.action_dim)
        demo.check_arrays(where, state, action, self._features.state_dim, self._features.action_dim)
        steps = np.arange(0, len(state), self._stride, dtype=np.int32) if self._camera_keys else np.zeros(0, np.int32)
        images = {name: self._images(where, example, name, len(state)) for name in self._camera_keys}
        return demo.Demonstration(where, self._prompt(example), state, action, steps, images, self._features.fps_hz)

    def _vectors(self, where: str, example: dict[str, tfrecord.Value], key: str, dim: int) -> np.ndarray:
        values = example.get(PREFIX + key)
        if not isinstance(values, np.ndarray) or len(values) % dim:
            size = None if values is None else len(values)
            raise demo.DatasetError(f"{where}: steps/{key} has {size} values; a multiple of {dim} numbers expected")
        return values.astype(np.float32).reshape(-1, dim)

    def _images(self, where: str, example: dict[str, tfrecord.Value], name: str, frames: int) -> tuple[bytes, ...]:
        values = example.get(self._camera_keys[name])
        if not isinstance(values, list) or len(values) != frames:
            size = None if values is None else len(values)
            raise demo.DatasetError(f"{where}: camera {name} has {size} images for {frames} frames")
        chosen = range(0, frames, self._stride)
        return tuple(demo.recode(where, name, step, values[step], self._transform) for step in chosen)

    def _prompt(self, example: dict[str, tfrecord.Value]) -> str:
        values = example.get(self._prompt_key) if self._prompt_key else None
        return values[0].decode() if isinstance(values, list) and values else ""
