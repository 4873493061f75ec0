"""Shards of experience in LeRobot dataset format v3.0, restored bit for bit.

    folder = write_shard(parent, "shard-000003", episodes, features)
    episodes = read_shard(folder)          # raises ShardError naming the file that is missing or altered

A shard is a data set of its own: meta/{info.json, stats.json, tasks.parquet}, meta/episodes and data (one file each).
Images stay the very JPEG bytes, as an image column {bytes, path}; frames without a capture hold null. What the fleet
needs beyond LeRobot stands in extra columns. A shard appears by rename, after fsync, with a checksum for every file.

Shape letters: T frames, V frames with images, S state numbers, A action numbers, O objects, P numbers per pose.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cel_jax.data.episode import CameraSpec, Episode, EpisodeHeader, Features, Label, Outcome
from cel_jax.data.episode_check import PER_FRAME_DTYPES, check_features
from cel_jax.data.lerobot_v3_meta import info_json, stats_json, tasks_table

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS, INFO, STATS = "meta/tasks.parquet", "meta/info.json", "meta/stats.json"
CHECKSUMS = "checksums.sha256"
TEMPORARY = ".tmp-"
_STATE, _ACTION, _OBJECTS, _IMAGE = "observation.state", "action", "observation.objects", "observation.images."
_EXTRA = {
    "policy_version": pa.int64(),
    "source": pa.uint8(),
    "intervened": pa.bool_(),
    "stage": pa.int16(),
    "capture_time_s": pa.float64(),
}
_IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class ShardError(RuntimeError):
    """A shard that is not whole. The message names folder and file."""


def write_shard(parent: Path, name: str, episodes: Sequence[Episode], features: Features) -> Path:
    """Writes a shard and returns its folder; on return it is on disk. Raises FileExistsError for a name in use."""
    target, temporary = parent / name, parent / (TEMPORARY + name)
    if target.exists():
        raise FileExistsError(f"shard {target} exists; shards are never rewritten")
    if not episodes:
        raise ValueError(f"shard {name}: no episodes to write")
    for episode in episodes:
        check_features(episode, features)
    shutil.rmtree(temporary, ignore_errors=True)  # left by a crash: never renamed, so never counted
    _write_files(temporary, episodes, features)
    _write_checksums(temporary)
    os.rename(temporary, target)
    fsync_folder(parent)
    return target


def read_shard(folder: Path) -> list[Episode]:
    """The episodes of a shard, in the order written. Raises `ShardError`."""
    check_shard(folder)
    info = json.loads((folder / INFO).read_text())
    rows = pq.read_table(folder / EPISODES).to_pylist()
    data = pq.read_table(folder / DATA)
    return [_read_episode(row, data, info) for row in rows]


def shard_episode_ids(folder: Path) -> list[str]:
    """Ids of the episodes in a shard. Raises `ShardError`."""
    check_shard(folder)
    ids: list[str] = pq.read_table(folder / EPISODES, columns=["episode_id"])["episode_id"].to_pylist()
    return ids


def shard_features(folder: Path) -> Features:
    """The features that a shard was written with."""
    values = json.loads((folder / INFO).read_text())["cel"]["features"]
    cameras = tuple(CameraSpec(**camera) for camera in values.pop("cameras"))
    objects = values.pop("objects_shape")
    return Features(
        cameras=cameras,
        objects_shape=None if objects is None else (objects[0], objects[1]),
        delta_mask=tuple(values.pop("delta_mask")),
        **values,
    )


def check_shard(folder: Path) -> None:
    """Raises `ShardError` unless every file is there with its checksum."""
    listing = folder / CHECKSUMS
    if folder.name.startswith(TEMPORARY) or not listing.is_file():
        raise ShardError(f"shard {folder}: incomplete (no {CHECKSUMS}); it was being written when the store stopped")
    for line in listing.read_text().splitlines():
        digest, _, relative = line.partition("  ")
        path = folder / relative
        if not path.is_file():
            raise ShardError(f"shard {folder}: {relative} is missing")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise ShardError(f"shard {folder}: {relative} was altered (checksum differs)")


def fsync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_files(folder: Path, episodes: Sequence[Episode], features: Features) -> None:
    for relative in (DATA, EPISODES):
        (folder / relative).parent.mkdir(parents=True)
    prompts = sorted({episode.header.prompt for episode in episodes})
    pq.write_table(_data_table(episodes, features, prompts), folder / DATA)
    pq.write_table(_episodes_table(episodes), folder / EPISODES)
    pq.write_table(tasks_table(prompts), folder / TASKS)
    (folder / INFO).write_text(json.dumps(info_json(episodes, features, len(prompts)), indent=1))
    (folder / STATS).write_text(json.dumps(stats_json(episodes), indent=1))


def _write_checksums(folder: Path) -> None:
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n")
        _fsync_file(path)
    (folder / CHECKSUMS).write_text("".join(lines))
    _fsync_file(folder / CHECKSUMS)
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        fsync_folder(path)


def _fsync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _data_table(episodes: Sequence[Episode], features: Features, prompts: list[str]) -> pa.Table:
    tables, offset = [], 0
    for index, episode in enumerate(episodes):
        tables.append(_episode_table(episode, features, index, offset, prompts.index(episode.header.prompt)))
        offset += episode.num_frames
    return pa.concat_tables(tables)


def _episode_table(episode: Episode, features: Features, index: int, offset: int, task: int) -> pa.Table:
    steps = np.arange(episode.num_frames, dtype=np.int64)
    columns: dict[str, Any] = {_STATE: _vectors(episode.state), _ACTION: _vectors(episode.action)}
    if episode.objects is not None:
        columns[_OBJECTS] = _vectors(episode.objects.reshape(episode.num_frames, -1))
    for camera in features.camera_names:
        columns[_IMAGE + camera] = _image_column(episode, camera)
    columns["timestamp"] = pa.array((steps / episode.header.fps_hz).astype(np.float32))
    columns.update(
        frame_index=pa.array(steps),
        episode_index=pa.array(np.full_like(steps, index)),
        index=pa.array(steps + offset),
        task_index=pa.array(np.full_like(steps, task)),
    )
    columns.update({name: pa.array(getattr(episode, name), dtype) for name, dtype in _EXTRA.items()})
    return pa.table(columns)


def _vectors(array: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])


def _image_column(episode: Episode, camera: str) -> pa.Array:
    rows: list[dict[str, Any] | None] = [None] * episode.num_frames
    for step, image in zip(episode.image_steps.tolist(), episode.images[camera], strict=True):
        rows[step] = {"bytes": image, "path": f"{camera}-{step:06d}.jpg"}
    return pa.array(rows, _IMAGE_TYPE)


def _episodes_table(episodes: Sequence[Episode]) -> pa.Table:
    rows, offset = [], 0
    for index, episode in enumerate(episodes):
        end = offset + episode.num_frames
        header, label = dataclasses.asdict(episode.header), dataclasses.asdict(episode.label)
        rows.append(
            {
                "episode_index": index,
                "tasks": [header.pop("prompt")],
                "length": episode.num_frames,
                "data/chunk_index": 0,
                "data/file_index": 0,
                "dataset_from_index": offset,
                "dataset_to_index": end,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                "episode_id": header.pop("id"),
                **header,
                "outcome": label["outcome"].value,
                "label_author": label["author"],
                "label_time_s": label["time_s"],
                "label_reason": label["reason"],
            }
        )
        offset = end
    return pa.Table.from_pylist(rows)


def _read_episode(row: dict[str, Any], data: pa.Table, info: dict[str, Any]) -> Episode:
    table = data.slice(row["dataset_from_index"], row["length"]).combine_chunks()
    cameras = [name[len(_IMAGE) :] for name in table.column_names if name.startswith(_IMAGE)]
    image_steps, images = _read_images(table, cameras)
    extra = {name: table[name].to_numpy().astype(PER_FRAME_DTYPES[name]) for name in _EXTRA}
    return Episode(
        _read_header(row),
        _read_label(row),
        state=_matrix(table, _STATE),
        action=_matrix(table, _ACTION),
        image_steps=image_steps,
        images=images,
        objects=_read_objects(table, info),
        **extra,
    )


def _read_objects(table: pa.Table, info: dict[str, Any]) -> np.ndarray | None:
    if _OBJECTS not in table.column_names:
        return None
    return _matrix(table, _OBJECTS).reshape(table.num_rows, *info["cel"]["features"]["objects_shape"])


def _matrix(table: pa.Table, name: str) -> np.ndarray:
    flat = table[name].combine_chunks()
    values = flat.chunk(0) if isinstance(flat, pa.ChunkedArray) else flat
    return values.flatten().to_numpy().astype(np.float32).reshape(table.num_rows, -1)


def _read_images(table: pa.Table, cameras: list[str]) -> tuple[np.ndarray, dict[str, tuple[bytes, ...]]]:
    if not cameras:
        return np.zeros(0, np.int32), {}
    rows = {camera: table[_IMAGE + camera].to_pylist() for camera in cameras}
    steps = [step for step, row in enumerate(rows[cameras[0]]) if row is not None]
    images = {camera: tuple(rows[camera][step]["bytes"] for step in steps) for camera in cameras}
    return np.array(steps, np.int32), images


def _read_header(row: dict[str, Any]) -> EpisodeHeader:
    names = ("station", "worker", "robot_id", "calibration_hash", "task", "fps_hz", "start_time_s")
    return EpisodeHeader(id=row["episode_id"], prompt=row["tasks"][0], **{name: row[name] for name in names})


def _read_label(row: dict[str, Any]) -> Label:
    return Label(Outcome(row["outcome"]), row["label_author"], row["label_time_s"], row["label_reason"])
