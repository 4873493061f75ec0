"""The spool of a station: episodes on the robot's disk until a store has them.

<episode>~<worker>.partial  frames stream here; dropped when their worker died
<episode>.finished          complete, waits for its label, survives restarts
<episode>.labelled          labelled and durable; the courier delivers it
<episode>.store             the store that this episode was offered to (kept until delivered or revoked)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable

from cel_jax.bus.durable import (
    check_id,
    file_sha256,
    free_bytes,
    remove_durably,
    rename_durably,
    require_space,
    sync_folder,
    write_durably,
)
from cel_jax.bus.errors import Conflict, SpaceError
from cel_jax.bus.records import END, FRAME, LABEL, MAGIC, RecordError, check_complete, frames_end, write_record


@dataclasses.dataclass(frozen=True)
class SpooledEpisode:
    """A labelled episode that is ready to go."""

    id: str
    path: pathlib.Path
    size_bytes: int


class EpisodeWriter:
    """Appends frames of one running episode. `finish` or `abandon` ends it."""

    def __init__(self, path: pathlib.Path, final: pathlib.Path, fsync_every_frames: int, done: Callable[[], None]):
        self._path, self._final, self._every, self._done = path, final, fsync_every_frames, done
        self._file = path.open("xb")
        self._file.write(MAGIC)
        self.frames = 0

    def append(self, payload: bytes) -> None:
        """Writes one frame's bytes. Raises SpaceError when the disk is full."""
        try:
            write_record(self._file, FRAME, payload)
            self.frames += 1
            if self._every and self.frames % self._every == 0:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise SpaceError(f"spool cannot write frame {self.frames} of {self._path.name}: {error}") from error

    def finish(self) -> None:
        """Makes the episode durable; from now on it survives its worker and waits for a label."""
        try:
            self._file.close()
            rename_durably(self._path, self._final)
        except OSError as error:
            raise SpaceError(f"spool cannot finish {self._path.name}: {error}") from error
        self._done()

    def abandon(self) -> None:
        """Drops the episode, also on a full disk: what could not be written any more is not wanted."""
        with contextlib.suppress(OSError):
            self._file.close()
        remove_durably(self._path)
        self._done()


class Spool:
    """One station's folder. `worker` is the process that writes now. Thread-safe.

    fsync_every_frames: 0 syncs when an episode ends. free: free bytes of a folder, replaceable in tests.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        worker: str,
        *,
        fsync_every_frames: int = 0,
        spare_bytes: int = 64 << 20,
        free: Callable[[pathlib.Path], int] = free_bytes,
    ) -> None:
        self.folder, self.worker = pathlib.Path(folder), check_id(worker)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._every, self._spare_bytes, self._free = fsync_every_frames, spare_bytes, free
        self._lock = threading.Lock()
        self._reserved: dict[str, int] = {}
        self._checked: dict[str, tuple[int, int]] = {}
        self.damaged: dict[str, str] = {}
        for path in self.folder.glob("*.store"):
            if not path.with_suffix(".labelled").exists():  # a crash came in the middle of `delete`
                path.unlink(missing_ok=True)

    def begin(self, episode_id: str, reserve_bytes: int) -> EpisodeWriter:
        """Starts an episode once its worst-case bytes fit. Raises SpaceError, or Conflict for a known id."""
        check_id(episode_id)
        with self._lock:
            if any(self._find(episode_id)):
                raise Conflict(f"episode {episode_id!r} is in the spool already; ids are never used again")
            needed = reserve_bytes + sum(self._reserved.values()) + self._spare_bytes
            require_space(self.folder, needed, self._free(self.folder), f"episode {episode_id!r}")
            self._reserved[episode_id] = reserve_bytes
        partial, final = self.folder / f"{episode_id}~{self.worker}.partial", self._path(episode_id, "finished")
        return EpisodeWriter(partial, final, self._every, lambda: self._free_up(episode_id))

    def label(self, episode_id: str, payload: bytes) -> None:
        """Labels a finished episode, once. On return the label is durable. Raises Conflict when it has one."""
        finished, labelled = self._path(episode_id, "finished"), self._path(episode_id, "labelled")
        with self._lock:
            if labelled.exists():
                raise Conflict(f"episode {episode_id!r} has its label; undo it first or annotate later")
            if not finished.exists():
                raise FileNotFoundError(f"episode {episode_id!r} is not among the finished {self.unlabelled()}")
            self._append_label(finished, payload)
            os.utime(finished)  # the undo time counts from here
            rename_durably(finished, labelled)

    def undo_label(self, episode_id: str, hold_s: float) -> None:
        """Takes a label back within `hold_s` seconds. Raises Conflict when it is final."""
        finished, labelled = self._path(episode_id, "finished"), self._path(episode_id, "labelled")
        with self._lock:
            if not labelled.exists() or self._age_s(labelled) >= hold_s or self.store_of(episode_id):
                raise Conflict(f"label of episode {episode_id!r} is final, or there is none")
            with labelled.open("r+b") as file:
                file.truncate(frames_end(labelled))
            rename_durably(labelled, finished)

    def unlabelled(self) -> list[str]:
        """Ids of finished episodes that wait for their label."""
        return sorted(path.stem for path in self.folder.glob("*.finished"))

    def pending(self, hold_s: float = 0.0) -> list[SpooledEpisode]:
        """Complete labelled episodes whose label is at least `hold_s` seconds old, oldest first.

        Damaged files stay where they are and are named in `damaged`."""
        with self._lock:
            paths = [path for path in self.folder.glob("*.labelled") if self._age_s(path) >= hold_s]
            whole = [path for path in paths if self._is_whole(path)]
            whole.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
            return [SpooledEpisode(path.stem, path, path.stat().st_size) for path in whole]

    def delete(self, episode_id: str) -> None:
        """Forgets an episode that a store has acknowledged."""
        with self._lock:
            remove_durably(self._path(episode_id, "labelled"))
            remove_durably(self._path(episode_id, "store"))
            self._checked.pop(episode_id, None)
            self.damaged.pop(episode_id, None)

    def drop_partials(self) -> list[str]:
        """Drops the running episodes of dead workers: all that are not this worker's. Returns their file names."""
        with self._lock:
            gone = [path for path in self.folder.glob("*.partial") if not path.stem.endswith(f"~{self.worker}")]
            for path in gone:
                path.unlink()
            sync_folder(self.folder)
            return sorted(path.name for path in gone)

    def store_of(self, episode_id: str) -> str:
        """The store that this episode belongs to; empty when it was never offered."""
        path = self._path(episode_id, "store")
        return path.read_text() if path.exists() else ""

    def assign(self, episode_id: str, store: str) -> None:
        """Binds an episode to a store, durably, before it is offered."""
        write_durably(self._path(episode_id, "store"), store.encode())

    def unassign(self, episode_id: str) -> None:
        """Frees one episode, whose store declined it."""
        remove_durably(self._path(episode_id, "store"))

    def revoke(self, store: str) -> list[str]:
        """Frees the episodes bound to a store that is gone for good. Returns their ids."""
        freed = [path.stem for path in self.folder.glob("*.store") if path.read_text() == store]
        for episode_id in freed:
            remove_durably(self._path(episode_id, "store"))
        return sorted(freed)

    def _path(self, episode_id: str, state: str) -> pathlib.Path:
        return self.folder / f"{check_id(episode_id)}.{state}"

    def _find(self, episode_id: str) -> list[pathlib.Path]:
        """By name and not by a pattern: patterns are compiled and kept, one for each episode."""
        begins = (f"{episode_id}.", f"{episode_id}~")
        return [self.folder / name for name in sorted(os.listdir(self.folder)) if name.startswith(begins)]

    def _free_up(self, episode_id: str) -> None:
        with self._lock:
            self._reserved.pop(episode_id, None)

    def _append_label(self, path: pathlib.Path, payload: bytes) -> None:
        end = frames_end(path)  # a crash between writing a label and the rename leaves one that was never confirmed
        with path.open("r+b") as file:
            file.truncate(end)
            file.seek(end)
            write_record(file, LABEL, payload)
            file.flush()
            write_record(file, END, file_sha256(path).encode())

    def _is_whole(self, path: pathlib.Path) -> bool:
        stamp = (path.stat().st_size, path.stat().st_mtime_ns)
        if self._checked.get(path.stem) == stamp:
            return path.stem not in self.damaged
        self.damaged.pop(path.stem, None)
        try:
            check_complete(path)
        except RecordError as error:
            self.damaged[path.stem] = str(error)
        self._checked[path.stem] = stamp
        return path.stem not in self.damaged

    def _age_s(self, path: pathlib.Path) -> float:
        return max(0.0, time.time() - path.stat().st_mtime)
