"""Encoded episodes and frame logs: what comes back, and what is said of damage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cel_jax.data.episode_codec import (
    EpisodeError,
    Frame,
    FrameLog,
    check_features,
    content_hash,
    decode_episode,
    encode_episode,
    frames_to_episode,
    read_frame_log,
)
from tests.replay.episodes import IMAGE_FEATURES, STATE_FEATURES, assert_same, make_episode


@pytest.mark.parametrize("images", [False, True])
def test_an_episode_comes_back_bit_for_bit(images: bool) -> None:
    episode = make_episode("e/1 ü", 17, images=images, human=(3, 4))
    data = encode_episode(episode)
    assert_same(decode_episode(data), episode)
    assert encode_episode(decode_episode(data)) == data and len(content_hash(data)) == 64


def test_decoded_arrays_are_writable() -> None:
    state = decode_episode(encode_episode(make_episode("e"))).state
    state[0] = 1.0
    assert state[0, 0] == 1.0


@pytest.mark.parametrize("images", [False, True])
def test_every_altered_byte_is_noticed(images: bool) -> None:
    data = encode_episode(make_episode("e7", 9, images=images))
    for offset in range(0, len(data), 7):
        bad = bytearray(data)
        bad[offset] ^= 0x40
        with pytest.raises(EpisodeError):
            decode_episode(bytes(bad))


def test_every_cut_is_noticed() -> None:
    data = encode_episode(make_episode("e7", 5))
    for end in range(0, len(data), 11):
        with pytest.raises(EpisodeError):
            decode_episode(data[:end])
    with pytest.raises(EpisodeError, match="too many"):
        decode_episode(data[:-32] + b"xx" + data[-32:])


def test_damage_names_episode_and_leaf() -> None:
    episode = make_episode("e7", 9)
    data = bytearray(encode_episode(episode))
    data[data.index(episode.action.tobytes()) + 5] ^= 1
    with pytest.raises(EpisodeError, match=r"station-1.*e7.*leaf 'action'.*altered"):
        decode_episode(bytes(data))
    with pytest.raises(EpisodeError, match="version 2"):
        decode_episode(data[:4] + b"\x02\x00" + data[6:])
    with pytest.raises(EpisodeError, match="not an episode"):
        decode_episode(b"PK\x03\x04" + bytes(data[4:]))


@pytest.mark.parametrize(
    "leaf, value",
    [
        ("state", np.zeros((20, 4))),
        ("action", np.zeros((19, 4), np.float32)),
        ("source", np.zeros(20, np.int64)),
        ("image_steps", np.array([3, 2], np.int32)),
        ("objects", np.zeros((21, 2, 9), np.float32)),
    ],
)
def test_unfitting_arrays_are_refused(leaf: str, value: np.ndarray) -> None:
    with pytest.raises(EpisodeError, match=leaf):
        encode_episode(dataclasses.replace(make_episode("e"), **{leaf: value}))


def test_features_name_station_episode_and_camera() -> None:
    episode = make_episode("e9", 9, images=True)
    check_features(episode, IMAGE_FEATURES)
    check_features(make_episode("e9"), STATE_FEATURES)
    gone = {"head": episode.images["head"]}
    with pytest.raises(EpisodeError, match=r"station-1.*e9.*camera 'wrist' is missing"):
        check_features(dataclasses.replace(episode, images=gone), IMAGE_FEATURES)
    swapped = {"head": episode.images["wrist"], "wrist": episode.images["head"]}
    with pytest.raises(EpisodeError, match=r"station-1.*e9.*camera 'head'.* 8 x 8, expected 16 x 24"):
        check_features(dataclasses.replace(episode, images=swapped), IMAGE_FEATURES)
    empty = {**episode.images, "head": (b"", *episode.images["head"][1:])}
    with pytest.raises(EpisodeError, match=r"camera 'head'.*not a JPEG"):
        check_features(dataclasses.replace(episode, images=empty), IMAGE_FEATURES)
    with pytest.raises(EpisodeError, match="objects"):
        check_features(episode, STATE_FEATURES)


def test_nan_is_refused() -> None:
    episode = make_episode("e9")
    episode.action[4, 2] = np.nan
    with pytest.raises(EpisodeError, match=r"leaf 'action': not finite at frame 4"):
        check_features(episode, STATE_FEATURES)


def _frames(episode) -> list[Frame]:
    rows = {int(step): row for row, step in enumerate(episode.image_steps)}
    return [
        Frame(
            t,
            episode.state[t],
            episode.action[t],
            {c: v[rows[t]] for c, v in episode.images.items()} if t in rows else {},
            None if episode.objects is None else episode.objects[t],
            float(episode.capture_time_s[t]),
            int(episode.policy_version[t]),
            int(episode.source[t]),
            bool(episode.intervened[t]),
            int(episode.stage[t]),
        )
        for t in range(episode.num_frames)
    ]


@pytest.mark.parametrize("images", [False, True])
def test_a_frame_log_gives_the_episode(tmp_path, images: bool) -> None:
    episode = make_episode("e", 14, images=images, human=(2,))
    with FrameLog.create(tmp_path / "log", episode.header) as log:
        for frame in _frames(episode):
            log.append(frame)
        log.finish()
    contents = read_frame_log(tmp_path / "log")
    assert contents.complete and contents.torn_bytes == 0
    assert (tmp_path / "log").stat().st_size == log.num_bytes
    assert_same(frames_to_episode(contents.header, episode.label, contents.frames), episode)


def test_a_cut_log_keeps_whole_frames(tmp_path) -> None:
    episode, path = make_episode("e", 6), tmp_path / "log"
    sizes = []
    with FrameLog.create(path, episode.header) as log:
        for frame in _frames(episode):
            sizes.append(log.num_bytes)
            log.append(frame)
    data = path.read_bytes()
    for cut in range(sizes[0], len(data) + 1):
        path.write_bytes(data[:cut])
        contents = read_frame_log(path)
        whole = sum(end <= cut for end in [*sizes[1:], len(data)])
        assert len(contents.frames) == whole and not contents.complete
        assert contents.torn_bytes == cut - ([*sizes, len(data)][whole])
    path.write_bytes(data[: sizes[0] - 1])
    with pytest.raises(EpisodeError, match="never began"):
        read_frame_log(path)


def test_damage_inside_a_finished_log_is_an_error(tmp_path) -> None:
    episode, path = make_episode("e5", 6), tmp_path / "log"
    with FrameLog.create(path, episode.header) as log:
        for frame in _frames(episode):
            log.append(frame)
        middle = log.num_bytes - 20
        log.finish()
    data = bytearray(path.read_bytes())
    data[middle] ^= 1
    path.write_bytes(data)
    contents = read_frame_log(path)  # cannot be told from a crash, and must not pass for complete
    assert not contents.complete and contents.torn_bytes > 0 and len(contents.frames) == 5


def test_a_log_refuses_gaps_and_overwriting(tmp_path) -> None:
    episode = make_episode("e5", 6)
    frames = _frames(episode)
    with FrameLog.create(tmp_path / "log", episode.header) as log:
        log.append(frames[0])
        with pytest.raises(EpisodeError, match=r"e5.*frame 2 came, expected 1"):
            log.append(frames[2])
    with pytest.raises(FileExistsError):
        FrameLog.create(tmp_path / "log", episode.header)
    with pytest.raises(EpisodeError, match="gaps"):
        frames_to_episode(episode.header, episode.label, frames[1:])


def test_a_camera_that_drops_out_is_named() -> None:
    episode = make_episode("e5", 7, images=True)
    frames = _frames(episode)
    frames[3] = dataclasses.replace(frames[3], images={"head": frames[3].images["head"]})
    with pytest.raises(EpisodeError, match=r"station-1.*e5.*camera 'wrist': missing at captured frame 3"):
        frames_to_episode(episode.header, episode.label, frames)
