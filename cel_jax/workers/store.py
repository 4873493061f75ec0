"""The store worker: takes labelled episodes in and serves the learner. `python -m cel_jax.workers.store`

Runs in the store's environment (Reverb) or, with the numpy table, in any.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any

from cel_jax.bus.arrays import pack_arrays
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.receiver import EpisodeReceiver
from cel_jax.bus.records import RecordError, read_episode
from cel_jax.bus.server import Handler
from cel_jax.data.episode import Episode
from cel_jax.data.episode_check import EpisodeError
from cel_jax.data.frame_log import decode_frame, decode_label, frames_to_episode
from cel_jax.recovery import rundb
from cel_jax.recovery.beat import WorkerContext
from cel_jax.replay.notices import ExperienceNotice
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.replay.table import TableEmpty, make_table
from cel_jax.workers.jobs import JobQueue
from cel_jax.workers.wiring import Wiring, load_features

WAIT_S = 0.1


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context, config = wiring.context, wiring.config
    folder = wiring.run_dir / "experience" / context.identity.station
    table = make_table(config.replay.table, config.policy.action_horizon, config.replay.uniform_share)
    limits = StoreConfig.of(config)
    limits = dataclasses.replace(limits, window_frames=limits.window_frames // config.fleet.stores)
    store = ExperienceStore(folder, table, limits, load_features(wiring.run_dir))
    jobs = JobQueue()
    worker = StoreWorker(wiring, store, jobs)
    receiver = EpisodeReceiver(folder, worker.on_episode, frames=lambda: store.table.frames)
    receiver.recover()
    station = context.identity.station
    intake, handlers = f"{station}-intake", receiver.handlers()
    curve = wiring.server_curve(intake, dict.fromkeys(handlers, frozenset({"environment"})))
    with (
        wiring.server(intake, handlers, curve),
        wiring.server(station, worker.handlers()),
    ):
        jobs.run_for(WAIT_S)
        context.ready()
        while not context.should_stop():
            jobs.run_for(WAIT_S)
            worker.tell_problems()
            context.progress(f"{store.table.frames} frames")
    store.close()
    context.close()


class StoreWorker:
    """The store's operations as handlers; all of them run in the worker's one loop."""

    def __init__(self, wiring: Wiring, store: ExperienceStore, jobs: JobQueue) -> None:
        self._wiring, self._store, self._jobs = wiring, store, jobs
        self._db = rundb.open_db(wiring.run_dir)
        self._told = 0

    def tell_problems(self) -> None:
        """Sends up what the store found amiss since the last time."""
        for problem in self._store.problems[self._told :]:
            self._wiring.context.report("store problem", problem)
            print(f"problem: {problem}", file=sys.stderr, flush=True)
        self._told = len(self._store.problems)

    def on_episode(self, episode: str, path: pathlib.Path) -> None:
        """Called by the intake once an episode is durable."""
        self._jobs.put(lambda: self._take(episode, path))

    def handlers(self) -> dict[str, Handler]:
        operations = {
            "reset_learner": self._reset,
            "next_experience": self._next,
            "embedded": self._embedded,
            "quarantine": self._quarantine,
            "apply_event": self._apply,
            "apply_peer_event": self._apply_peer,
            "sample": self._sample,
            "counters": self._counters,
            "snapshot": self._snapshot,
            "restore": self._restore,
        }
        return {name: self._jobs.handler(operation) for name, operation in operations.items()}

    def _take(self, name: str, path: pathlib.Path) -> None:
        """Spool records, decoded once, to the store's own form; what cannot be read is kept aside and reported."""
        encoded = path.with_suffix(".encoded")
        try:
            whole = read_spooled(path)
            accepted = self._store.accept_episode(whole, encoded)
        except (EpisodeError, RecordError, ValueError, KeyError) as error:
            self._refuse(name, path, error)
            return
        path.unlink()
        if not accepted.duplicate:
            self._introduce(whole)
            rundb.assign_store(self._db, accepted.episode, self._wiring.context.identity.station)

    def _introduce(self, episode: Episode) -> None:
        """An episode of a robot that joined from another machine is not in this run.db yet."""
        head, label, db = episode.header, episode.label, self._db
        if rundb.episodes(db, "id = ?", (head.id,)):
            return
        rundb.start_episode(db, head.id, head.station, head.worker, head.robot_id, head.start_time_s)
        rundb.end_episode(db, head.id, episode.num_frames, int(episode.policy_version[-1]), label.time_s)
        rundb.label_episode(db, head.id, label.outcome.value, label.author, label.reason, label.time_s)

    def _refuse(self, name: str, path: pathlib.Path, error: Exception) -> None:
        aside = path.parent.parent / "rejected"
        aside.mkdir(exist_ok=True)
        path.rename(aside / path.name)
        path.with_suffix(".encoded").unlink(missing_ok=True)
        self._wiring.context.report("episode refused", f"{name}: {error}; kept as {aside / path.name}")
        print(f"episode {name} refused: {error}", file=sys.stderr, flush=True)

    def _reset(self, request: Request) -> Reply:
        self._store.reset_learner(str(request.header["session"]))
        return Reply({"window": list(self._store.window)})

    def _next(self, request: Request) -> Reply:
        heads: list[dict[str, Any]] = []
        tree: dict[str, Any] = {}
        for index, notice in enumerate(self._store.next_experience(int(request.header["max_items"]))):
            head, arrays = split_notice(notice)
            heads.append(head)
            tree[str(index)] = arrays
        meta, buffers = pack_arrays(tree)
        return Reply({"notices": heads, "arrays": meta}, buffers)

    def _embedded(self, request: Request) -> Reply:
        self._store.embedded(str(request.header["episode"]))
        return Reply({})

    def _quarantine(self, request: Request) -> Reply:
        self._store.quarantine(str(request.header["episode"]), str(request.header["reason"]))
        return Reply({})

    def _apply(self, request: Request) -> Reply:
        return Reply({"applied": self._store.apply_event(str(request.header["failure"]), intervals_of(request))})

    def _apply_peer(self, request: Request) -> Reply:
        return Reply({"applied": self._store.apply_peer_event(str(request.header["failure"]), intervals_of(request))})

    def _sample(self, request: Request) -> Reply:
        try:
            batch = self._store.sample(int(request.header["n"]), int(request.header["seed"]))
        except TableEmpty:
            return Reply({"empty": True})
        arrays: dict[str, Any] = {"state": batch.state, "actions": batch.actions, "action_mask": batch.action_mask}
        arrays["probabilities"] = batch.probabilities
        arrays |= {"images": dict(batch.images)} if batch.images else {}
        arrays |= {} if batch.objects is None else {"objects": batch.objects}
        meta, buffers = pack_arrays(arrays)
        keys = [[episode, int(start)] for episode, start in batch.keys]
        return Reply({"empty": False, "keys": keys, "version": int(batch.priority_version), "arrays": meta}, buffers)

    def _counters(self, request: Request) -> Reply:
        return Reply({"counters": {name: int(value) for name, value in self._store.counters().items()}})

    def _snapshot(self, request: Request) -> Reply:
        return Reply({}, [self._store.snapshot().encode()])

    def _restore(self, request: Request) -> Reply:
        from cel_jax.replay.snapshot import StoreSnapshot

        self._store.restore(StoreSnapshot.decode(bytes(request.buffers[0])))
        return Reply({})


def intervals_of(request: Request) -> list[tuple[str, int, int]]:
    return [(str(episode), int(left), int(right)) for episode, left, right in request.header["intervals"]]


def read_spooled(path: pathlib.Path) -> Episode:
    """A spooled file (frames, then the label) as an episode."""
    records = read_episode(path)
    header, label = decode_label(records.label)
    return frames_to_episode(header, label, [decode_frame(data) for data in records.frames])


def split_notice(notice: ExperienceNotice) -> tuple[dict[str, Any], dict[str, Any]]:
    """A notice as plain values and arrays."""
    values = {field.name: getattr(notice, field.name) for field in dataclasses.fields(notice)}
    arrays = {name: values.pop(name) for name in ("steps", "state")}
    objects, images = values.pop("objects"), values.pop("images")
    if objects is not None:
        arrays["objects"] = objects
    if images:
        arrays["images"] = {camera: list(jpegs) for camera, jpegs in images.items()}
    return values, arrays


if __name__ == "__main__":
    main()
