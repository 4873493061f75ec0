"""The description files of a LeRobot v3.0 shard: info.json, stats.json, tasks.parquet.

Shape letters: T frames, S state numbers, A action numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg

from cel_jax.data.episode import Episode, Features

_STATS_IMAGES = 8  # images a camera that statistics are taken of
_SCALARS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
    "policy_version": "int64",
    "source": "uint8",
    "intervened": "bool",
    "stage": "int16",
    "capture_time_s": "float64",
}


def info_json(episodes: Sequence[Episode], features: Features, num_tasks: int) -> dict[str, Any]:
    """meta/info.json; the key `cel` holds what LeRobot does not know."""
    fps = features.fps_hz
    return {
        "codebase_version": "v3.0",
        "robot_type": features.robot_type,
        "total_episodes": len(episodes),
        "total_frames": sum(episode.num_frames for episode in episodes),
        "total_tasks": num_tasks,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
        "fps": int(fps) if float(fps).is_integer() else fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": _feature_table(features),
        "cel": {"version": 1, "features": dataclasses.asdict(features)},
    }


def _feature_table(features: Features) -> dict[str, Any]:
    table: dict[str, Any] = {"observation.state": _vector(features.state_dim), "action": _vector(features.action_dim)}
    if features.objects_shape is not None:
        table["observation.objects"] = _vector(int(np.prod(features.objects_shape)))
    for camera in features.cameras:
        table[f"observation.images.{camera.name}"] = {
            "dtype": "image",
            "shape": [camera.height, camera.width, 3],
            "names": ["height", "width", "channels"],
        }
    table.update({name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _SCALARS.items()})
    return table


def _vector(size: int) -> dict[str, Any]:
    return {"dtype": "float32", "shape": [size], "names": None}


def stats_json(episodes: Sequence[Episode]) -> dict[str, Any]:
    """meta/stats.json: min, max, mean, std, count of every vector, and of a few images per camera in [0, 1]."""
    stats = {
        "observation.state": _stats(np.concatenate([episode.state for episode in episodes])),
        "action": _stats(np.concatenate([episode.action for episode in episodes])),
    }
    objects = [episode.objects.reshape(episode.num_frames, -1) for episode in episodes if episode.objects is not None]
    if objects:
        stats["observation.objects"] = _stats(np.concatenate(objects))
    for camera in episodes[0].images:
        jpegs = [jpeg for episode in episodes for jpeg in episode.images[camera]]
        stats[f"observation.images.{camera}"] = _image_stats(jpegs)
    return stats


def _stats(rows: np.ndarray) -> dict[str, Any]:
    rows = rows.astype(np.float64)
    return {
        "min": rows.min(0).tolist(),
        "max": rows.max(0).tolist(),
        "mean": rows.mean(0).tolist(),
        "std": rows.std(0).tolist(),
        "count": [len(rows)],
    }


def _image_stats(jpegs: list[bytes]) -> dict[str, Any]:
    picked = [jpegs[i] for i in np.linspace(0, len(jpegs) - 1, min(_STATS_IMAGES, len(jpegs)), dtype=int)]
    pixels = np.stack([simplejpeg.decode_jpeg(jpeg) for jpeg in picked]) / 255.0
    shaped = {
        name: np.asarray(getattr(pixels, name)((0, 1, 2))).reshape(3, 1, 1).tolist()
        for name in ("min", "max", "mean", "std")
    }
    return {**shaped, "count": [len(picked)]}


def tasks_table(prompts: Sequence[str]) -> pa.Table:
    """meta/tasks.parquet: task_index, with the task as pandas' index."""
    table = pa.table({"task_index": pa.array(range(len(prompts)), pa.int64()), "__index_level_0__": list(prompts)})
    columns = [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
            "metadata": None,
        },
        {
            "name": None,
            "field_name": "__index_level_0__",
            "pandas_type": "unicode",
            "numpy_type": "object",
            "metadata": None,
        },
    ]
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": columns,
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas).encode()})
