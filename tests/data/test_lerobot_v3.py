"""Shards in LeRobot v3.0 format: restored bit for bit, readable as LeRobot data, and honest about damage."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.data.lerobot_v3 import (
    CHECKSUMS,
    DATA,
    EPISODES,
    TEMPORARY,
    ShardError,
    read_shard,
    shard_episode_ids,
    shard_features,
    write_shard,
)
from tests.replay.episodes import IMAGE_FEATURES, STATE_FEATURES, assert_same, make_episode


def _episodes(images: bool) -> list:
    return [make_episode(f"e/{i}", 10 + 3 * i, images=images, seed=i, human=(i,)) for i in range(8)]


@pytest.mark.parametrize("images", [False, True])
def test_a_shard_comes_back_bit_for_bit(tmp_path, images: bool) -> None:
    features, episodes = (IMAGE_FEATURES if images else STATE_FEATURES), _episodes(images)
    folder = write_shard(tmp_path, "shard-000000", episodes, features)
    for a, b in zip(read_shard(folder), episodes, strict=True):
        assert_same(a, b)
    assert shard_episode_ids(folder) == [e.header.id for e in episodes]
    assert shard_features(folder) == features
    assert os.listdir(tmp_path) == ["shard-000000"]


def test_layout_is_lerobot_v3(tmp_path) -> None:
    episodes = _episodes(True)
    folder = write_shard(tmp_path, "s", episodes, IMAGE_FEATURES)
    info = json.loads((folder / "meta/info.json").read_text())
    data, rows = pq.read_table(folder / DATA), pq.read_table(folder / EPISODES).to_pylist()
    assert info["codebase_version"] == "v3.0" and info["total_frames"] == data.num_rows and info["fps"] == 30
    assert (folder / info["data_path"].format(chunk_index=0, file_index=0)).is_file()
    assert set(data.column_names) == set(info["features"])
    assert str(data.schema.field("observation.state").type).startswith("fixed_size_list<element: float>[4]") or (
        str(data.schema.field("observation.state").type).startswith("fixed_size_list<item: float>[4]")
    )
    assert data["index"].to_pylist() == list(range(data.num_rows))
    assert [row["dataset_to_index"] - row["dataset_from_index"] for row in rows] == [e.num_frames for e in episodes]
    assert rows[3]["tasks"] == ["Pack the phone."] and rows[3]["outcome"] == Outcome.SUCCESS.value
    second = data.slice(rows[1]["dataset_from_index"], rows[1]["length"])
    assert second["timestamp"][0].as_py() == 0.0 and second["frame_index"].to_pylist() == list(range(13))
    assert second["observation.images.head"][3].as_py()["bytes"] == episodes[1].images["head"][1]
    assert second["observation.images.head"][3].as_py()["path"] == "head-000003.jpg"
    assert second["observation.images.head"][1].as_py() is None
    tasks = pq.read_table(folder / "meta/tasks.parquet")
    assert tasks.to_pylist() == [{"task_index": 0, "__index_level_0__": "Pack the phone."}]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]


def test_statistics_are_those_of_the_data(tmp_path) -> None:
    episodes = _episodes(False)
    folder = write_shard(tmp_path, "s", episodes, STATE_FEATURES)
    stats = json.loads((folder / "meta/stats.json").read_text())["observation.state"]
    state = np.concatenate([e.state for e in episodes]).astype(np.float64)
    np.testing.assert_allclose(stats["mean"], state.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats["std"], state.std(0), rtol=1e-12)
    assert stats["count"] == [len(state)]


def test_every_missing_or_altered_file_is_named(tmp_path) -> None:
    folder = write_shard(tmp_path, "s", _episodes(True), IMAGE_FEATURES)
    names = [line.split("  ")[1] for line in (folder / CHECKSUMS).read_text().splitlines()]
    assert len(names) == 5
    for name in names:
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
        with pytest.raises(ShardError, match=f"{name} was altered"):
            read_shard(copy)
        (copy / name).unlink()
        with pytest.raises(ShardError, match=f"{name} is missing"):
            read_shard(copy)
        shutil.rmtree(copy)


def test_a_crash_leaves_nothing_that_counts(tmp_path, monkeypatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            write_shard(tmp_path, "s", _episodes(False), STATE_FEATURES)
    assert os.listdir(tmp_path) == [TEMPORARY + "s"]
    with pytest.raises(ShardError, match="incomplete"):
        read_shard(tmp_path / (TEMPORARY + "s"))
    write_shard(tmp_path, "s", _episodes(False), STATE_FEATURES)
    assert os.listdir(tmp_path) == ["s"]
    with pytest.raises(FileExistsError):
        write_shard(tmp_path, "s", _episodes(False), STATE_FEATURES)


def test_the_demonstration_reader_takes_a_shard(tmp_path) -> None:
    """The project's LeRobot reader, written apart from this writer, sees the same numbers."""
    open_folder = pytest.importorskip("cel_jax.data.lerobot_v30").open_folder
    episodes = [make_episode(f"e{i}", 12, images=True, seed=i, stride=1) for i in range(3)]
    folder = write_shard(tmp_path, "s", episodes, IMAGE_FEATURES)
    read = list(open_folder(folder))
    assert len(read) == 3
    for a, b in zip(read, episodes, strict=True):
        np.testing.assert_array_equal(a.state, b.state)
        np.testing.assert_array_equal(a.action, b.action)
