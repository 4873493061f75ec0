"""Writes tiny data sets in other people's formats, for the readers' tests."""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any

import numpy as np

from cel_jax.data.images import encode_jpeg
from cel_jax.data.tfrecord import masked_crc32c

STATE_DIM, ACTION_DIM, FPS, SIZE = 3, 3, 10, 64
NAMES = ["shoulder", "elbow", "gripper"]


def arrays(episode: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(episode)
    return rng.normal(size=(length, STATE_DIM)).astype("f4"), rng.normal(size=(length, ACTION_DIM)).astype("f4")


def frame(episode: int, step: int) -> np.ndarray:
    """A flat grey image whose brightness names its step and episode."""
    return np.full((SIZE, SIZE, 3), 20 + 8 * step + 100 * episode, np.uint8)


def info(version: str, lengths: list[int], kind: str) -> dict[str, Any]:
    vector = {"dtype": "float32", "shape": [3], "names": {"motors": NAMES}}
    camera = {"dtype": kind, "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    return {
        "codebase_version": version,
        "robot_type": "tiny",
        "total_episodes": len(lengths),
        "chunks_size": 1000,
        "fps": FPS,
        "features": {"observation.state": vector, "action": vector, "observation.images.top": camera},
    }


def rows(episodes: dict[int, int]) -> dict[str, Any]:
    """Columns of a parquet file with episodes (index -> length)."""
    import pyarrow as pa

    state, action = (np.concatenate([arrays(e, n)[k] for e, n in episodes.items()]) for k in (0, 1))
    columns: dict[str, Any] = {
        key: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3)
        for key, values in (("observation.state", state), ("action", action))
    }
    columns["frame_index"] = np.concatenate([np.arange(n) for n in episodes.values()])
    columns["episode_index"] = np.concatenate([np.full(n, e) for e, n in episodes.items()])
    return columns


def image_cells(episodes: dict[int, int], every: int = 1) -> list[dict[str, Any] | None]:
    return [
        {"bytes": encode_jpeg(frame(e, t)), "path": None} if t % every == 0 else None
        for e, n in episodes.items()
        for t in range(n)
    ]


def write_parquet(path: pathlib.Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_video(path: pathlib.Path, frames: list[np.ndarray]) -> None:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "1", "g": "4"})
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def write_v21(root: pathlib.Path, lengths: list[int], videos: bool = True) -> pathlib.Path:
    description = info("v2.1", lengths, "video") | {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(description))
    entries = [{"episode_index": e, "tasks": [f"task {e}"], "length": n} for e, n in enumerate(lengths)]
    (root / "meta/episodes.jsonl").write_text("\n".join(json.dumps(entry) for entry in entries))
    for e, n in enumerate(lengths):
        write_parquet(root / f"data/chunk-000/episode_{e:06d}.parquet", rows({e: n}))
        if videos:
            video = root / f"videos/chunk-000/observation.images.top/episode_{e:06d}.mp4"
            write_video(video, [frame(e, t) for t in range(n)])
    return root


def write_v30(root: pathlib.Path, lengths: list[int], kind: str, every: int = 1) -> pathlib.Path:
    """All episodes in one data file and, for `video`, one video file."""
    description = info("v3.0", lengths, kind) | {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(description))
    episodes = dict(enumerate(lengths))
    columns = rows(episodes)
    starts = np.cumsum([0, *lengths[:-1]])
    listing: dict[str, Any] = {
        "episode_index": list(episodes),
        "tasks": [[f"task {e}"] for e in episodes],
        "length": lengths,
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": [0] * len(lengths),
    }
    if kind == "video":
        write_video(
            root / "videos/observation.images.top/chunk-000/file-000.mp4",
            [frame(e, t) for e, n in episodes.items() for t in range(n)],
        )
        key = "videos/observation.images.top/"
        listing |= {f"{key}chunk_index": [0] * len(lengths), f"{key}file_index": [0] * len(lengths)}
        listing |= {f"{key}from_timestamp": starts / FPS, f"{key}to_timestamp": (starts + lengths) / FPS}
    else:
        columns["observation.images.top"] = image_cells(episodes, every)
    write_parquet(root / "data/chunk-000/file-000.parquet", columns)
    write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", listing)
    return root


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def example(values: dict[str, Any]) -> bytes:
    """tf.train.Example of float arrays, integer lists and lists of bytes."""
    entries = b""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            feature = _field(2, _field(1, value.astype("<f4").tobytes()))
        elif isinstance(value[0], bytes):
            feature = _field(1, b"".join(_field(1, item) for item in value))
        else:
            feature = _field(3, _field(1, b"".join(_varint(item & (1 << 64) - 1) for item in value)))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def write_rlds(root: pathlib.Path, lengths: list[int], shards: int = 2) -> pathlib.Path:
    def tensor(*dims: int) -> dict[str, Any]:
        return {"tensor": {"shape": {"dimensions": [str(d) for d in dims]}, "dtype": "float32", "encoding": "none"}}

    def group(**children: Any) -> dict[str, Any]:
        return {"featuresDict": {"features": children}}

    image = {"image": {"shape": {"dimensions": [str(SIZE), str(SIZE), "3"]}, "encodingFormat": "jpeg"}}
    step = group(action=tensor(3), language_instruction={"text": {}}, observation=group(state=tensor(3), top=image))
    root = root / "tiny" / "1.0.0"
    root.mkdir(parents=True)
    (root / "features.json").write_text(json.dumps(group(steps={"sequence": {"feature": step}})))
    per_shard = [lengths[i::shards] for i in range(shards)]
    split = {"name": "train", "shardLengths": [str(len(part)) for part in per_shard]}
    split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    (root / "dataset_info.json").write_text(json.dumps({"name": "tiny", "fileFormat": "tfrecord", "splits": [split]}))
    for i, part in enumerate(per_shard):
        data = b"".join(record(example(_steps(i, n))) for n in part)
        (root / f"tiny-train.tfrecord-{i:05d}-of-{shards:05d}").write_bytes(data)
    return root


def _steps(episode: int, length: int) -> dict[str, Any]:
    state, action = arrays(episode, length)
    return {
        "steps/observation/state": state.reshape(-1),
        "steps/action": action.reshape(-1),
        "steps/language_instruction": [f"task {episode}".encode()] * length,
        "steps/observation/top": [encode_jpeg(frame(episode, t)) for t in range(length)],
    }
