"""The spool: what is on disk after every kind of end."""

from __future__ import annotations

import os

import pytest

from cel_jax.bus.errors import Conflict, SpaceError
from cel_jax.bus.records import RecordError, read_episode
from cel_jax.bus.spool import Spool


def _finish(spool: Spool, episode_id: str, frames=(b"one", b"two")) -> None:
    writer = spool.begin(episode_id, 100)
    for frame in frames:
        writer.append(frame)
    writer.finish()


def _names(spool: Spool) -> list[str]:
    return sorted(path.name for path in spool.folder.iterdir())


def test_episode_goes_from_frames_to_pending(tmp_path):
    spool = Spool(tmp_path, "w-1", fsync_every_frames=1)
    _finish(spool, "e-1")
    assert spool.unlabelled() == ["e-1"] and spool.pending() == []
    spool.label("e-1", b"success")
    (episode,) = spool.pending()
    records = read_episode(episode.path)
    assert (episode.id, records.frames, records.label) == ("e-1", [b"one", b"two"], b"success")
    spool.delete("e-1")
    assert _names(spool) == []


def test_partial_of_a_dead_worker_is_dropped_and_named_but_finished_ones_stay(tmp_path):
    dead = Spool(tmp_path, "w-dead")
    _finish(dead, "e-1")
    dead.begin("e-2", 100).append(b"x")
    heir = Spool(tmp_path, "w-new")
    mine = heir.begin("e-3", 100)
    assert heir.drop_partials() == ["e-2~w-dead.partial"]
    mine.finish()
    assert heir.unlabelled() == ["e-1", "e-3"]
    heir.label("e-1", b"failure")
    assert [episode.id for episode in heir.pending()] == ["e-1"]


def test_label_is_once_only_and_can_be_undone_until_it_is_final(tmp_path):
    spool = Spool(tmp_path, "w")
    _finish(spool, "e")
    spool.label("e", b"success")
    with pytest.raises(Conflict):
        spool.label("e", b"failure")
    assert spool.pending(hold_s=60) == []
    spool.undo_label("e", hold_s=60)
    assert spool.unlabelled() == ["e"] and spool.pending() == []
    spool.label("e", b"failure")
    assert read_episode(spool.pending()[0].path).label == b"failure"
    with pytest.raises(Conflict):
        spool.undo_label("e", hold_s=0)
    spool.assign("e", "store-0")
    with pytest.raises(Conflict):
        spool.undo_label("e", hold_s=60)


def test_label_written_but_not_renamed_was_never_given(tmp_path):
    spool = Spool(tmp_path, "w")
    _finish(spool, "e")
    spool.label("e", b"success")
    os.rename(tmp_path / "e.labelled", tmp_path / "e.finished")
    spool.label("e", b"failure")
    records = read_episode(spool.pending()[0].path)
    assert (records.label, records.frames) == (b"failure", [b"one", b"two"])


def test_every_cut_and_every_flipped_byte_is_noticed(tmp_path):
    spool = Spool(tmp_path, "w")
    _finish(spool, "e")
    spool.label("e", b"success")
    path = tmp_path / "e.labelled"
    whole = path.read_bytes()
    broken = [whole[:n] for n in range(len(whole))] + [whole + b"x"]
    broken += [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(RecordError):
            read_episode(path)
    path.write_bytes(whole[:-5])
    fresh = Spool(tmp_path, "w")
    assert fresh.pending() == [] and "e" in fresh.damaged and path.exists()


def test_crash_while_deleting_leaves_nothing_behind(tmp_path):
    spool = Spool(tmp_path, "w")
    _finish(spool, "e-1")
    spool.label("e-1", b"success")
    for episode_id in ("e-1", "e-2"):
        spool.assign(episode_id, "store-0")
    heir = Spool(tmp_path, "w-2")
    assert _names(heir) == ["e-1.labelled", "e-1.store"] and heir.store_of("e-1") == "store-0"


@pytest.mark.parametrize("bad", ["", "../e", "a/b", ".hidden", "a.b", "x" * 121, "a\0b", "e\n", "~"])
def test_ids_never_leave_the_folder(tmp_path, bad):
    spool = Spool(tmp_path, "w")
    for call in (lambda: spool.begin(bad, 1), lambda: spool.label(bad, b""), lambda: spool.delete(bad)):
        with pytest.raises(ValueError, match="episode id"):
            call()


def test_space_is_reserved_before_an_episode_starts(tmp_path):
    spool = Spool(tmp_path, "w", spare_bytes=10, free=lambda _: 100)
    first = spool.begin("e-1", 60)
    with pytest.raises(SpaceError, match=r"'e-2'.*130 bytes are needed.*100 are free"):
        spool.begin("e-2", 60)
    first.abandon()
    spool.begin("e-2", 60).finish()
    with pytest.raises(Conflict, match="e-2"):
        spool.begin("e-2", 1)


def test_full_disk_while_writing_is_a_space_error(tmp_path):
    spool = Spool(tmp_path, "w", fsync_every_frames=1)
    writer = spool.begin("e", 1)
    real = os.open("/dev/full", os.O_WRONLY)
    os.dup2(real, writer._file.fileno())
    os.close(real)
    with pytest.raises(SpaceError, match="No space"):
        writer.append(b"x" * 100)
    writer.abandon()  # its buffer cannot be written either, and need not be
    assert not list(tmp_path.glob("*.partial"))
