import json
import pathlib

import numpy as np
import pytest

from cel_jax.data import demonstrations as demo
from cel_jax.data.demonstrations import DatasetError, open_demos
from cel_jax.data.episode import CameraSpec, Episode, EpisodeHeader, Features, Label, Outcome
from cel_jax.data.images import DamagedImage, decode_jpeg, encode_jpeg, resize
from tests.data import tiny_datasets as tiny

pytest.importorskip("pyarrow", reason="LeRobot data needs pyarrow", exc_type=ImportError)
pytest.importorskip("av", reason="LeRobot video needs av")

REAL = pathlib.Path(__file__).parents[2].parent / "shared" / "data"
needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason="the real data sets are not beside the repository")


def _write(kind: str, root: pathlib.Path, lengths: list[int]) -> pathlib.Path:
    if kind == "v21":
        return tiny.write_v21(root, lengths)
    if kind == "rlds":
        return tiny.write_rlds(root, lengths)
    return tiny.write_v30(root, lengths, kind.removeprefix("v30-"))


KINDS = ["v21", "v30-video", "v30-image", "rlds"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_demonstrations(kind: str, tmp_path: pathlib.Path) -> None:
    demos = open_demos(_write(kind, tmp_path / "set", [7, 5]))
    assert len(demos) == demos.total == 2
    assert demos.features.camera_names == ("top",)
    for _ in range(2):  # a second pass starts afresh
        for episode, (length, found) in enumerate(zip([7, 5], demos.demos, strict=True)):
            state, action = tiny.arrays(episode, length)
            np.testing.assert_array_equal(found.state, state)
            np.testing.assert_array_equal(found.action, action)
            assert found.task_prompt == f"task {episode}"
            np.testing.assert_array_equal(found.image_steps, np.arange(length))
            for step, data in zip(found.image_steps, found.images["top"], strict=True):
                got = decode_jpeg(data).astype(int)
                assert np.abs(got - tiny.frame(episode, int(step)).astype(int)).mean() < 3.9, (episode, step)


@pytest.mark.parametrize("kind", KINDS)
def test_stride_transform_and_no_cameras(kind: str, tmp_path: pathlib.Path) -> None:
    folder = _write(kind, tmp_path / "set", [7, 5])
    halved = open_demos(folder, transform=lambda _, x: resize(x, 8, 8), image_stride_frames=3)
    first = next(halved.demos)
    assert first.image_steps.tolist() == [0, 3, 6]
    pictures = [decode_jpeg(data) for data in first.images["top"]]
    assert [p.shape for p in pictures] == [(8, 8, 3)] * 3
    assert abs(pictures[2].mean() - tiny.frame(0, 6).mean()) < 4
    blind = next(open_demos(folder, cameras=()).demos)
    assert blind.images == {} and len(blind.image_steps) == 0 and len(blind.state) == 7
    with pytest.raises(DatasetError, match="no cameras \\['nose'\\]"):
        open_demos(folder, cameras=("nose",))


def test_joint_names_decide_the_delta_mask(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "set", [3], videos=False)
    assert open_demos(folder, ()).features.delta_mask == (True, True, False)
    assert open_demos(folder, (), delta_mask=(False,) * 3).features.delta_mask == (False,) * 3


def test_missing_files_are_named_and_counted(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "set", [4, 4, 4])
    (folder / "data/chunk-000/episode_000002.parquet").unlink()
    (folder / "videos/chunk-000/observation.images.top/episode_000000.mp4").unlink()
    demos = open_demos(folder)
    assert [d.id for d in demos.demos] == ["set/000001"]
    assert [part.name for part in demos.skipped] == ["episode 0", "episode 2"]
    assert "1 of 3 episodes; 2 skipped: episode 0 (videos/" in demos.summary()
    assert [d.id for d in open_demos(folder, cameras=()).demos] == ["set/000000", "set/000001"]


def test_missing_shard_is_named_and_counted(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_rlds(tmp_path, [4, 3, 2])
    (folder / "tiny-train.tfrecord-00000-of-00002").unlink()
    demos = open_demos(tmp_path)
    assert (len(demos), demos.total, len(list(demos.demos))) == (1, 3, 1)
    assert "tiny-train.tfrecord-00000-of-00002 (shard missing)" in demos.summary()


def test_images_that_were_not_captured_are_left_out(tmp_path: pathlib.Path) -> None:
    first = next(open_demos(tiny.write_v30(tmp_path / "set", [7, 5], "image", every=3)).demos)
    assert first.image_steps.tolist() == [0, 3, 6]
    assert first.images["top"][1] == tiny.image_cells({0: 7})[3]["bytes"]  # the very bytes


def _truncate(path: pathlib.Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("kind", "file", "message"),
    [
        ("v21", "data/chunk-000/episode_000001.parquet", "episode_000001.parquet: damaged or partial"),
        ("v21", "videos/chunk-000/observation.images.top/episode_000001.mp4", "episode 1, camera top"),
        ("v30-video", "data/chunk-000/file-000.parquet", "file-000.parquet: damaged or partial"),
        ("v30-video", "videos/observation.images.top/chunk-000/file-000.mp4", "episode 0, camera top"),
        ("v30-image", "meta/episodes/chunk-000/file-000.parquet", "damaged or partial"),
        ("v21", "meta/info.json", "info.json: cannot be read"),
        ("v21", "meta/episodes.jsonl", "meta/ is partial"),
        ("rlds", "tiny-train.tfrecord-00001-of-00002", "record 0: .* of .* bytes; the file is cut off"),
        ("rlds", "features.json", "features.json: cannot be read"),
    ],
)
def test_damage_is_an_error_that_names_its_place(kind: str, file: str, message: str, tmp_path: pathlib.Path) -> None:
    folder = _write(kind, tmp_path / "set", [6, 6])
    _truncate(folder / file)
    with pytest.raises(DatasetError, match=message):
        list(open_demos(folder).demos)


def test_flipped_byte_in_a_record_is_found(tmp_path: pathlib.Path) -> None:
    file = tiny.write_rlds(tmp_path, [6]) / "tiny-train.tfrecord-00000-of-00002"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DatasetError, match="checksum of its"):
        list(open_demos(tmp_path).demos)


def test_fewer_video_frames_than_rows(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "set", [6])
    video = folder / "videos/chunk-000/observation.images.top/episode_000000.mp4"
    tiny.write_video(video, [tiny.frame(0, t) for t in range(4)])
    with pytest.raises(DatasetError, match=r"4 frames from 0\.000 s on, 6 expected"):
        list(open_demos(folder).demos)


def test_meta_that_disagrees(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "set", [6, 6], videos=False)
    lines = (folder / "meta/episodes.jsonl").read_text().splitlines()
    (folder / "meta/episodes.jsonl").write_text(lines[0])
    with pytest.raises(DatasetError, match="announces 2 episodes, the list in meta/ has 1"):
        open_demos(folder, ())
    (folder / "meta/episodes.jsonl").write_text("\n".join([lines[0], lines[1].replace('"length": 6', '"length": 9')]))
    with pytest.raises(DatasetError, match="set episode 1: 6 frames, 9 announced"):
        list(open_demos(folder, ()).demos)


def test_nan_names_the_frame(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v21(tmp_path / "set", [6], videos=False)
    columns = tiny.rows({0: 6})
    columns["action"] = [[0.0, 1.0, 2.0]] * 4 + [[0.0, float("nan"), 1.0]] + [[0.0, 1.0, 2.0]]
    tiny.write_parquet(folder / "data/chunk-000/episode_000000.parquet", columns)
    with pytest.raises(DatasetError, match="action is NaN or infinite at frame 4"):
        list(open_demos(folder, ()).demos)


def test_damaged_image_names_camera_and_step(tmp_path: pathlib.Path) -> None:
    folder = tiny.write_v30(tmp_path / "set", [4], "image")
    cells = tiny.image_cells({0: 4})
    cells[2] = {"bytes": b"\xff\xd8 nothing", "path": None}
    tiny.write_parquet(
        folder / "data/chunk-000/file-000.parquet", tiny.rows({0: 4}) | {"observation.images.top": cells}
    )
    with pytest.raises(DamagedImage, match="episode set episode 0, camera top, step 2"):
        list(open_demos(folder).demos)


def test_unknown_folders_and_versions(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DatasetError, match=r"expected meta/info\.json"):
        open_demos(tmp_path)
    folder = tiny.write_v21(tmp_path / "set", [3], videos=False)
    text = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(text | {"codebase_version": "v1.6"}))
    with pytest.raises(DatasetError, match=r"codebase_version v1\.6"):
        open_demos(folder)


def test_the_fleets_own_shards_are_demonstrations_too(tmp_path: pathlib.Path) -> None:
    lerobot_v3 = pytest.importorskip("cel_jax.data.lerobot_v3")
    state, action = tiny.arrays(0, 7)
    jpegs = tuple(encode_jpeg(tiny.frame(0, t)) for t in (0, 3, 6))
    episode = Episode(
        header=EpisodeHeader("e0", "s", "w", "r", "h", "task", "Go.", 10.0, 0.0),
        label=Label(Outcome.SUCCESS, "me", 1.0),
        state=state,
        action=action,
        image_steps=np.array([0, 3, 6], np.int32),
        images={"top": jpegs},
        objects=None,
        policy_version=np.zeros(7, np.int64),
        source=np.zeros(7, np.uint8),
        intervened=np.zeros(7, bool),
        stage=np.zeros(7, np.int16),
        capture_time_s=np.arange(7) / 10,
    )
    camera = CameraSpec("top", tiny.SIZE, tiny.SIZE)
    features = Features("tiny", 3, 3, (camera,), None, 10.0, (True, True, False))
    (found,) = open_demos(lerobot_v3.write_shard(tmp_path, "shard-000000", [episode], features))
    np.testing.assert_array_equal(found.action, action)
    assert found.image_steps.tolist() == [0, 3, 6] and found.images == {"top": jpegs} and found.task_prompt == "Go."


@needs_real_data
def test_real_unitree_data() -> None:
    blind = open_demos(REAL / "unitree_g1_v21", cameras=())
    assert (len(blind), blind.total) == (12, 100)
    lengths = [len(d.state) for d in blind.demos]
    assert lengths[:3] == [479, 393, 343] and sum(lengths) == 4947
    demos = open_demos(REAL / "unitree_g1_v21", image_stride_frames=50, transform=lambda _, x: resize(x, 48, 48))
    assert len(demos) == 2 and demos.features.delta_mask == (True,) * 14 + (False,) * 12
    first = next(demos.demos)
    assert first.task_prompt == "Pick up the yellow bottle on the table."
    np.testing.assert_allclose(first.state[0, :3], [-0.7199883, 0.4180098, -0.40199885], rtol=1e-6)
    assert len(first.images["cam_high"]) == 7
    assert decode_jpeg(first.images["cam_high"][0]).std() > 20


@needs_real_data
def test_real_bridge_data() -> None:
    demos = open_demos(REAL / "octo_bridge_debug")
    found = list(demos.demos)
    assert len(found) == demos.total == 25 and {len(d.state) for d in found} == {10}
    assert found[0].task_prompt == "put cup from counter or drying rack into sink"
    np.testing.assert_allclose(found[0].state[0, :2], [0.23381479, 0.11244296], rtol=1e-6)
    assert demos.features.camera_names == ("image_0", "image_1", "image_2", "image_3")
    assert decode_jpeg(found[0].images["image_0"][0]).shape == (64, 64, 3)
    assert isinstance(found[0], demo.Demonstration)
