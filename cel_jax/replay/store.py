"""ExperienceStore: takes labelled episodes, keeps them, and serves chunks to the learner.

    store = ExperienceStore(folder, make_table("auto", 30), StoreConfig.of(run), features)
    store.accept(path)                                  # after the write-ahead; acknowledge when it returns
    for notice in store.next_experience(8): ...         # the learner embeds and searches
    store.embedded(episode); store.apply_event(failure, intervals)
    batch = store.sample(128, seed)

Every change is an event on disk before it takes effect; a restart replays them. Not thread-safe: one process, one loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

from cel_jax.config import RunConfig
from cel_jax.data.episode import Episode, Features
from cel_jax.data.episode_check import EpisodeError, check_features, describe
from cel_jax.data.episode_codec import content_hash, decode_episode, encode_episode
from cel_jax.data.lerobot_v3 import ShardError, shard_episode_ids, write_shard
from cel_jax.replay.chunks import ChunkBatch, chunk_starts
from cel_jax.replay.event_log import EventLog
from cel_jax.replay.notices import ExperienceNotice, failure_notice, success_notice
from cel_jax.replay.priorities import ChunkEvent, Interval, WeightUpdate
from cel_jax.replay.snapshot import SnapshotMismatch, StoreSnapshot, check_snapshot, take_snapshot
from cel_jax.replay.store_files import FOLDER_OF, StoreFiles
from cel_jax.replay.store_state import Booked, StoreState, pack_starts
from cel_jax.replay.table import ChunkTable


@dataclasses.dataclass(frozen=True)
class StoreConfig:
    """What a store needs of a run's configuration; lengths in frames. task: the only one it takes; empty: any."""

    horizon: int = 30
    window_frames: int = 350_000
    w_init: float = 0.5
    shard_episodes: int = 8
    failure_retrieval: bool = True
    query_frames: int = 90
    endpoint_offset_frames: int = 10
    stride_frames: int = 3
    rho: float = 0.88
    task: str = ""
    chunk_stride_frames: int = 1

    @classmethod
    def of(cls, run: RunConfig) -> StoreConfig:
        replay, fert = run.replay, run.fert
        return cls(
            run.policy.action_horizon,
            replay.window_frames,
            replay.w_init,
            replay.shard_episodes,
            fert.failure_retrieval,
            fert.query_frames,
            fert.endpoint_offset_frames,
            fert.stride_frames,
            fert.rho,
            run.task.name,
            replay.chunk_stride_frames,
        )


@dataclasses.dataclass(frozen=True)
class Accepted:
    """The store's answer to a delivery. number: the event that took the episode, now or before."""

    episode: str
    kind: str
    number: int
    duplicate: bool


class ExperienceStore:
    """One store of a fleet. `problems`: what a restart found amiss, for the operator's page."""

    def __init__(self, folder: Path, table: ChunkTable, config: StoreConfig, features: Features) -> None:
        self.config, self.table, self._features = config, table, features
        self.problems: list[str] = []
        self.duplicates = 0
        self._quarantined: set[str] = set()
        self._files = StoreFiles(Path(folder))
        self._log = EventLog.open(Path(folder) / "events.log")
        self._session = ""
        self._embedded: set[str] = set()
        self._recover()

    # Taking episodes in

    def accept(self, path: Path) -> Accepted:
        """Takes a whole encoded episode from a file of this file system, which moves. A known id is dropped and
        reported as a duplicate. Raises `EpisodeError`, the file staying where it is, for an unusable episode."""
        data = Path(path).read_bytes()
        return self._take(Path(path), decode_episode(data), content_hash(data))

    def accept_episode(self, episode: Episode, path: Path) -> Accepted:
        """As `accept`, for an episode in memory: it is encoded into the new file `path`, which moves, and never decoded
        again. Raises `EpisodeError`; what was written of `path` stays."""
        data = encode_episode(episode)
        path.write_bytes(data)
        return self._take(path, episode, content_hash(data))

    def _take(self, path: Path, episode: Episode, sha256: str) -> Accepted:
        known = self._state.booked.get(episode.header.id)
        if known is not None:
            return self._drop_duplicate(path, known, sha256)
        self._check_task(episode)
        check_features(episode, self._features)
        kind = episode.label.outcome.value
        self._files.settle(path, kind, episode)
        number = self._book(episode, sha256)
        self._write_full_shards()
        return Accepted(episode.header.id, kind, number, duplicate=False)

    def _check_task(self, episode: Episode) -> None:
        if self.config.task and episode.header.task != self.config.task:
            raise EpisodeError(
                f"{describe(episode.header)}: of task {episode.header.task!r}, this run's store takes "
                f"{self.config.task!r} alone; restart the station with this run's configuration"
            )

    def _drop_duplicate(self, path: Path, known: Booked, sha256: str) -> Accepted:
        if sha256 != known.sha256:
            self.problems.append(
                f"episode {known.episode!r} came again with other content ({sha256[:12]}, first "
                f"{known.sha256[:12]}); the first stays, the second is in rejected/"
            )
            self._files.reject(path)
        else:
            path.unlink()
        self.duplicates += 1
        return Accepted(known.episode, known.kind, known.number, duplicate=True)

    def _book(self, episode: Episode, sha256: str) -> int:
        kind, key = episode.label.outcome.value, episode.header.id
        data = {"episode": key, "sha256": sha256, "num_frames": episode.num_frames}
        if kind == "success":
            starts = chunk_starts(episode, self.config.horizon, self.config.chunk_stride_frames)
            data.update(starts=pack_starts(starts), w_init=self.config.w_init)
        self._event(kind, data)
        number = self._state.head
        if kind == "success":
            self._enter_window(episode)
        return number

    def _enter_window(self, episode: Episode) -> None:
        """Nothing enters where no chunk is the policy's own work."""
        key, priorities = episode.header.id, self._state.priorities
        if key not in priorities.episodes:
            return
        self.table.insert_episode(episode, priorities.starts(key), priorities.stored(key))
        self._trim_window()

    def _trim_window(self) -> None:
        for gone in self.table.over_window(self.config.window_frames):
            self._leave_window(gone, "window")

    def _leave_window(self, episode: str, reason: str) -> None:
        self._event("evict", {"episode": episode, "reason": reason})
        self.table.remove_episode(episode)
        self._embedded.discard(episode)

    def _event(self, kind: str, data: dict) -> list[WeightUpdate]:
        return self._state.apply(self._log.append(kind, data))

    def _write_full_shards(self) -> None:
        pending = self._state.unsharded()
        while len(pending) >= self.config.shard_episodes:
            self._write_shard(pending[: self.config.shard_episodes])
            pending = self._state.unsharded()

    def _write_shard(self, keys: list[str]) -> None:
        name = self._files.next_shard_name()
        episodes = [self._load(key) for key in keys]
        write_shard(self._files.shards, name, episodes, self._features)
        self._event("shard", {"name": name, "episodes": keys})
        for key in keys:
            self._files.forget(key)

    def _load(self, key: str) -> Episode:
        return self._files.load(self._state.booked[key].kind, key, self._state.shard_of.get(key))

    # The learner

    def reset_learner(self, session: str) -> None:
        """A new learner starts with an empty ring and asks from the start of the window."""
        if session != self._session:
            self._session = session
            self._embedded.clear()

    def next_experience(self, max_items: int) -> list[ExperienceNotice]:
        """Up to `max_items` notices in order of arrival; each comes again until it is answered."""
        notices: list[ExperienceNotice] = []
        for booked in self._unanswered():
            if len(notices) == max_items:
                break
            notice = self._readable_notice(booked)
            if notice is not None:
                notices.append(notice)
        return notices

    def _readable_notice(self, booked: Booked) -> ExperienceNotice | None:
        """None for a failure too short to ask anything, and for a file that went bad: neither is asked for again."""
        try:
            notice = self._notice(booked)
        except (OSError, EpisodeError, ShardError) as error:
            self.problems.append(f"{booked.kind} {booked.episode!r} cannot be read any more: {error}")
            notice = None
        if notice is None:
            self._set_aside(booked, "unreadable")
        return notice

    def _set_aside(self, booked: Booked, reason: str) -> None:
        """A failure is answered without a match, a success leaves the window: no other weight changes."""
        if booked.kind == "failure" and booked.episode not in self._state.retrieved:
            self._event("retrieval", {"failure": booked.episode, "rho": self.config.rho, "intervals": []})
        elif booked.episode in self._state.priorities.episodes:
            self._leave_window(booked.episode, reason)

    def quarantine(self, episode: str, reason: str) -> None:
        """The learner cannot use this episode: it is neither asked nor sampled again. Its file stays. Raises ValueError
        for an unknown one."""
        booked = self._state.booked.get(episode)
        if booked is None:
            raise ValueError(f"store: {episode!r} is to be set aside, but this store never took it")
        if episode in self._quarantined:  # asked twice: deliveries repeat
            return
        self._quarantined.add(episode)
        self.problems.append(f"quarantined {booked.kind} {episode!r}: {reason}")
        self._set_aside(booked, "quarantined")

    def _unanswered(self) -> list[Booked]:
        state, window = self._state, set(self._state.priorities.episodes)
        waiting = [state.booked[key] for key in window - self._embedded]
        if self.config.failure_retrieval:
            waiting += [b for b in state.booked.values() if b.kind == "failure" and b.episode not in state.retrieved]
        return sorted(waiting, key=lambda booked: booked.number)

    def _notice(self, booked: Booked) -> ExperienceNotice | None:
        episode, config = self._load(booked.episode), self.config
        if booked.kind == "success":
            return success_notice(episode, booked.number, config.stride_frames)
        return failure_notice(
            episode, booked.number, config.query_frames, config.endpoint_offset_frames, config.stride_frames
        )

    def embedded(self, episode: str) -> None:
        """The learner holds this success in its ring; it is not announced again in this session."""
        if episode in self._state.priorities.episodes:
            self._embedded.add(episode)

    def apply_event(self, failure: str, intervals: Iterable[tuple[str, int, int]]) -> bool:
        """One failure's retrieval, raw frames [l, r) per success. False where this failure was applied before."""
        booked = self._state.booked.get(failure)
        if booked is None or booked.kind != "failure":
            raise ValueError(f"store: retrieval for {failure!r}, which is no failure of this store")
        return self._retrieve(failure, intervals)

    def apply_peer_event(self, failure: str, intervals: Iterable[tuple[str, int, int]]) -> bool:
        """As `apply_event`, for a failure that another store of the fleet holds."""
        if failure in self._state.booked:
            raise ValueError(f"store: retrieval for {failure!r} of another store, but this store holds it")
        return self._retrieve(failure, intervals)

    def _retrieve(self, failure: str, intervals: Iterable[tuple[str, int, int]]) -> bool:
        found = [Interval(episode, int(left), int(right)) for episode, left, right in intervals]
        self._check_intervals(failure, found)
        if failure in self._state.retrieved:
            return False
        data = {"failure": failure, "rho": self.config.rho, "intervals": [list(interval) for interval in found]}
        self.table.set_weights(self._event("retrieval", data))
        return True

    def _check_intervals(self, failure: str, intervals: list[Interval]) -> None:
        if len({interval.episode for interval in intervals}) != len(intervals):
            raise ValueError(f"store: retrieval of {failure!r} has two intervals in one episode: {intervals}")
        for episode, left, right in intervals:
            target = self._state.booked.get(episode)
            if target is not None and not 0 <= left < right <= target.num_frames:
                raise ValueError(
                    f"store: retrieval of {failure!r}: [{left}, {right}) is outside of {episode!r} "
                    f"with {target.num_frames} frames"
                )

    def sample(self, n: int, seed: int) -> ChunkBatch:
        """n chunks by the present weights; `priority_version` is the last event that changed them."""
        return dataclasses.replace(self.table.sample(n, seed), priority_version=self._state.weights_version)

    def explain(self, episode: str, start: int) -> list[ChunkEvent]:
        """Every event that made a chunk's weight."""
        return self._state.priorities.explain(episode, start)

    @property
    def window(self) -> tuple[str, ...]:
        """Successes in the active window, oldest first."""
        return self._state.priorities.episodes

    def taken(self) -> Iterator[Episode]:
        """Every labelled episode, in order of arrival. Raises what the readers raise for a file that went bad."""
        for booked in sorted(self._state.booked.values(), key=lambda booked: booked.number):
            yield self._load(booked.episode)

    @property
    def head(self) -> int:
        """Number of the last event."""
        return self._state.head

    def counters(self) -> dict[str, int]:
        return {
            **self._state.counters(),
            "duplicates": self.duplicates,
            "quarantined": len(self._quarantined),
            "window_frames": self.table.frames,
            "window_chunks": self.table.chunks,
            "window_episodes": len(self.window),
        }

    # Checkpoints and restarts

    def snapshot(self) -> StoreSnapshot:
        """For the training checkpoint. Everything it speaks of is already on disk."""
        return take_snapshot(self._state)

    def restore(self, snapshot: StoreSnapshot) -> None:
        """Proves that this store is the checkpoint's, and keeps its own head. Raises `SnapshotMismatch`."""
        if self._log.events[snapshot.event :]:
            then = StoreState.replay(self._log.events, self.config.horizon, snapshot.event)
        else:
            then = self._state
        check_snapshot(then, snapshot)

    def _recover(self) -> None:
        if self._log.torn_bytes:
            self.problems.append(f"events.log: {self._log.torn_bytes} bytes of an unfinished event were cut off")
        self._state = StoreState.replay(self._log.events, self.config.horizon)
        if self._log.head == 0:
            self._event("open", {"horizon": self.config.horizon})
        self._recover_shards()
        self._rebuild_table()
        self._trim_window()  # a crash may have come between an arrival and its evictions
        for name in FOLDER_OF.values():
            self._recover_settled(name)
        for path in self._files.files("incoming"):
            self._guard(path)
        self._write_full_shards()

    def _recover_shards(self) -> None:
        logged = set(self._state.shard_of.values())
        for name, problem in self._files.scan_shards():
            if problem:
                self.problems.append(f"skipped {problem}")
            elif name not in logged:  # the crash came between its rename and its event
                self._event("shard", {"name": name, "episodes": shard_episode_ids(self._files.shards / name)})
        whole = {name for name, problem in self._files.scan_shards() if not problem}
        for key, name in self._state.shard_of.items():
            if name in whole:
                self._files.forget(key)

    def _rebuild_table(self) -> None:
        priorities = self._state.priorities
        for key in priorities.episodes:
            try:
                episode = self._load(key)
            except (OSError, EpisodeError, ShardError) as error:
                self.problems.append(f"episode {key!r} left the window, its file is gone: {error}")
                self._event("evict", {"episode": key, "reason": "unreadable"})
            else:
                self.table.insert_episode(episode, priorities.starts(key), priorities.stored(key))

    def _recover_settled(self, name: str) -> None:
        """Episodes whose file was moved, but whose event was not yet written."""
        for path in self._files.unknown(name, self._state.booked):
            try:
                data = path.read_bytes()
                self._book(decode_episode(data), content_hash(data))
            except EpisodeError as error:
                self.problems.append(f"{name}/{path.name} cannot be read, moved to {self._files.reject(path)}: {error}")

    def _guard(self, path: Path) -> None:
        try:
            self.accept(path)
        except EpisodeError as error:
            self.problems.append(f"incoming/{path.name} cannot be used, moved to {self._files.reject(path)}: {error}")

    def close(self) -> None:
        self._log.close()
        self.table.close()


__all__ = ["Accepted", "ExperienceStore", "SnapshotMismatch", "StoreConfig"]
