"""What LeRobot v2.x and v3.0 folders have in common: their description and their columns.

Shape letters: T frames, S state numbers, A action numbers.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cel_jax.data import demonstrations as demo
from cel_jax.data.episode import CameraSpec, Features
from cel_jax.data.images import encode_jpeg

IMAGE_PREFIX = "observation.images."
STATE, ACTION = "observation.state", "action"


def check_total(folder: pathlib.Path, info: dict[str, Any], found: int) -> None:
    """Raises `DatasetError` where meta/info.json and the list of episodes disagree."""
    if int(info.get("total_episodes", found)) != found:
        raise demo.DatasetError(
            f"{folder}: info.json announces {info['total_episodes']} episodes, the list in meta/ has {found}; "
            "meta/ is partial, copy it again"
        )


def check_usable(folder: pathlib.Path, usable: int, skipped: tuple[demo.Skipped, ...]) -> None:
    """Raises `DatasetError` where nothing is left to read."""
    if usable == 0:
        reason = skipped[0].reason if skipped else "the list of episodes is empty"
        raise demo.DatasetError(
            f"{folder}: none of {len(skipped)} episodes can be used ({reason}); cameras=() reads without images"
        )


def parquet() -> Any:
    """pyarrow.parquet, or an error naming the extra."""
    try:
        import pyarrow.parquet as module
    except ImportError as error:
        raise ImportError(f"reading LeRobot data needs pyarrow (pip install 'cel-jax[train]'): {error}") from error
    return module


def read_info(folder: pathlib.Path) -> dict[str, Any]:
    """meta/info.json. Raises `DatasetError` where it is not whole."""
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise demo.DatasetError(f"{path}: cannot be read: {error}") from error
    missing = [key for key in ("fps", "features", "data_path") if key not in info]
    missing += [key for key in (STATE, ACTION) if key not in info.get("features", {})]
    if missing:
        raise demo.DatasetError(f"{path}: lacks {missing}; is this a LeRobot data set of a robot?")
    return info


def read_table(path: pathlib.Path, columns: list[str] | None = None) -> Any:
    """A parquet table. Raises `DatasetError` naming the file where it is damaged or lacks a column."""
    module = parquet()
    from pyarrow import ArrowException

    try:
        return module.read_table(path, columns=columns)
    except (ArrowException, OSError, ValueError) as error:
        raise demo.DatasetError(f"{path}: damaged or partial parquet file: {error}; copy it again") from error


def image_keys(info: dict[str, Any]) -> dict[str, str]:
    """Camera name -> the key of its feature, for video and image features alike."""
    keys = [key for key, feature in info["features"].items() if feature["dtype"] in ("video", "image")]
    return {key.removeprefix(IMAGE_PREFIX): key for key in keys}


def build_features(info: dict[str, Any], cameras: tuple[str, ...], delta_mask: tuple[bool, ...] | None) -> Features:
    """The data set's description as the fleet's `Features` (image sizes as stored)."""
    keys = image_keys(info)
    state_dim, action_dim = (int(info["features"][key]["shape"][0]) for key in (STATE, ACTION))
    mask = delta_mask or demo.default_delta_mask(_names(info["features"][ACTION]), state_dim, action_dim)
    specs = tuple(_camera(name, info["features"][keys[name]]) for name in cameras)
    return Features(str(info.get("robot_type")), state_dim, action_dim, specs, None, float(info["fps"]), mask)


def _names(feature: dict[str, Any]) -> tuple[str, ...] | None:
    """Names come as a list, a list in a list, or a mapping to a list."""
    names: Any = feature.get("names")
    if isinstance(names, dict):
        names = next(iter(names.values()), None)
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], list):
        names = names[0]
    return tuple(str(name) for name in names) if isinstance(names, list) else None


def _camera(name: str, feature: dict[str, Any]) -> CameraSpec:
    """Sizes are [h, w, c] or, by their names, [c, h, w]."""
    shape = [int(n) for n in feature["shape"]]
    channels_first = (feature.get("names") or [""])[0] in ("channel", "channels", "c")
    height, width = shape[1:] if channels_first else shape[:2]
    return CameraSpec(name, height, width)


def vectors(where: str, table: Any, key: str, dim: int) -> np.ndarray:
    """A list column as float32 [T, dim]. Raises `DatasetError` for nulls or rows of another length."""
    column = table.column(key).combine_chunks()
    if column.null_count:
        raise demo.DatasetError(f"{where}: {column.null_count} empty rows in {key}")
    if not hasattr(column, "values"):  # one number is stored as a plain column
        flat = column.to_numpy(zero_copy_only=False)
    else:
        flat = column.flatten().to_numpy(zero_copy_only=False)
    if len(flat) != len(table) * dim:
        raise demo.DatasetError(
            f"{where}: {key} has {len(flat)} numbers in {len(table)} frames; {dim} a frame expected"
        )
    return np.array(flat, np.float32).reshape(len(table), dim)


def episode_arrays(where: str, table: Any, features: Features, length: int) -> tuple[np.ndarray, np.ndarray]:
    """state [T, S] and action [T, A] of one episode's rows, checked against its announced length and frame order."""
    if len(table) != length:
        raise demo.DatasetError(f"{where}: {len(table)} frames, {length} announced in meta; the file is partial")
    frame_index = table.column("frame_index").to_numpy()
    if not np.array_equal(frame_index, np.arange(length)):
        at = int(np.flatnonzero(frame_index != np.arange(length))[0])
        raise demo.DatasetError(
            f"{where}: frame_index is {frame_index[at]} at row {at}; rows are missing or out of order"
        )
    state = vectors(where, table, STATE, features.state_dim)
    action = vectors(where, table, ACTION, features.action_dim)
    demo.check_arrays(where, state, action, features.state_dim, features.action_dim)
    return state, action


def column_images(
    where: str, folder: pathlib.Path, table: Any, key: str, camera: str, stride: int, transform: demo.Transform | None
) -> dict[int, bytes]:
    """step -> JPEG bytes of an image column (struct of bytes and path); frames without an image are left out."""
    found = {}
    for step, cell in enumerate(table.column(key).to_pylist()):
        if step % stride or cell is None or not (cell.get("bytes") or cell.get("path")):
            continue
        data = cell["bytes"] or (folder / cell["path"]).read_bytes()
        found[step] = demo.recode(where, camera, step, data, transform)
    return found


def encode_frames(
    frames: Iterator[np.ndarray], camera: str, stride: int, transform: demo.Transform | None
) -> dict[int, bytes]:
    """step -> JPEG bytes of decoded video frames, which come at every `stride`-th step."""
    shaped = frames if transform is None else (transform(camera, frame) for frame in frames)
    return {number * stride: encode_jpeg(frame) for number, frame in enumerate(shaped)}


def align(where: str, found: dict[str, dict[int, bytes]]) -> tuple[np.ndarray, dict[str, tuple[bytes, ...]]]:
    """image_steps int32 [V] and camera -> V images. Raises where the cameras have images at different steps."""
    if not found:
        return np.zeros(0, np.int32), {}
    first = next(iter(found))
    steps = sorted(found[first])
    for camera, by_step in found.items():
        odd = sorted(set(steps) ^ set(by_step))
        if odd:
            raise demo.DatasetError(
                f"{where}: cameras {first} and {camera} differ in which steps have images, at {odd[:5]}"
            )
    return np.array(steps, np.int32), {name: tuple(by[step] for step in steps) for name, by in found.items()}
