import json
import pathlib

import pytest

from cel_jax.config import InitConfig, PolicyConfig, RunConfig, TaskConfig
from cel_jax.data.demonstrations import DatasetError
from cel_jax.data.images import decode_jpeg
from cel_jax.initialization.sources import Demos, load_demos, split
from tests.data import tiny_datasets as tiny
from tests.initialization.toy_demos import BLIND, walk


def _config(folder: pathlib.Path, limit: int = 400) -> RunConfig:
    return RunConfig(
        task=TaskConfig(image_stride_frames=2),
        policy=PolicyConfig(action_horizon=4),
        init=InitConfig(demos=str(folder), num_demos=limit),
    )


def test_cameras_come_as_the_network_sees_them(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    demos = load_demos(_config(tiny.write_v21(tmp_path / "d", [6, 5])), said.append)
    assert [(camera.height, camera.width) for camera in demos.features.cameras] == [(96, 96)]
    first = demos.demonstrations[0]
    assert first.image_steps.tolist() == [0, 2, 4] and first.task_prompt == "task 0"
    assert decode_jpeg(first.images["top"][0]).shape == (96, 96, 3)
    assert said[0].endswith("2 of 2 episodes")


def test_damage_is_named_and_left_out(tmp_path: pathlib.Path) -> None:
    folder, said = tiny.write_v21(tmp_path / "d", [6, 5, 4]), []
    (folder / "data/chunk-000/episode_000001.parquet").write_bytes(b"half a file")
    (folder / "videos/chunk-000/observation.images.top/episode_000002.mp4").unlink()
    demos = load_demos(_config(folder), said.append)
    assert [d.id for d in demos.demonstrations] == ["d/000000"]
    text = "\n".join(said)
    assert "episode 2 (videos/" in text and "episode_000001.parquet: damaged" in text


def test_what_lies_behind_a_damaged_record_is_counted(tmp_path: pathlib.Path) -> None:
    folder, said = tiny.write_rlds(tmp_path / "d", [4, 4, 4], shards=1), []
    file = next(folder.rglob("*.tfrecord*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))
    demos = load_demos(_config(folder), said.append)
    assert len(demos.demonstrations) == 1
    assert said[-2].startswith("skipped: ") and said[-1].startswith("skipped: 1 demonstrations that lie behind")


def test_nothing_usable(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "d", [6])
    (folder / "data/chunk-000/episode_000000.parquet").write_bytes(b"half a file")
    with pytest.raises(DatasetError, match="none of its 1 demonstrations can be read"):
        load_demos(_config(folder), print)


def test_a_robot_without_cameras_is_refused(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "d", [6])
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["observation.images.top"]
    (folder / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(DatasetError, match="robot tiny has no camera images"):
        load_demos(_config(folder), print)


def test_at_most_so_many(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    demos = load_demos(_config(tiny.write_v21(tmp_path / "d", [5, 5, 5]), limit=2), said.append)
    assert len(demos.demonstrations) == 2 and "at most 2 of 3" in said[1]


@pytest.mark.parametrize("count,share,held", [(20, 0.1, 2), (2, 0.1, 1), (1, 0.1, 0), (5, 0.0, 0), (3, 0.9, 2)])
def test_split_holds_whole_episodes_out(count: int, share: float, held: int) -> None:
    demos = Demos(BLIND, tuple(walk(n) for n in range(count)), "toy")
    training, held_out = split(demos, share, seed=1)
    assert len(held_out) == held
    assert {d.id for d in [*training, *held_out]} == {f"walk-{n}" for n in range(count)} and training
