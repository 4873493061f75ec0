"""The store worker behind its real sockets: a spooled episode goes in, chunks and notices come out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cel_jax.bus.client import Client
from cel_jax.bus.errors import RemoteError
from cel_jax.bus.identity import Identity
from cel_jax.bus.server import Server
from cel_jax.bus.spool import Spool
from cel_jax.data.episode import Outcome, Source
from cel_jax.data.frame_log import encode_frame, encode_label
from cel_jax.recovery import rundb
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.workers.jobs import JobQueue
from cel_jax.workers.store import StoreWorker
from cel_jax.workers.store_client import RemoteStore
from cel_jax.workers.wiring import Wiring
from tests.workers.conftest import FEATURES, make_frames, make_header

LEARNER = Identity("training", "training-1-ab", "training")


class Rig:
    """A store worker whose loop runs in a thread."""

    def __init__(self, wiring: Wiring, folder: Path) -> None:
        self.jobs, self.stop = JobQueue(), threading.Event()
        config = StoreConfig.of(wiring.config)
        self.store = ExperienceStore(folder, MemoryTable(config.horizon), config, FEATURES)
        self.worker = StoreWorker(wiring, self.store, self.jobs)
        self.wiring = wiring

    def loop(self) -> None:
        while not self.stop.is_set():
            self.jobs.run_for(0.02)


@contextlib.contextmanager
def running(wiring: Wiring, tmp_path: Path) -> Iterator[tuple[Rig, RemoteStore]]:
    rig = Rig.__new__(Rig)
    ready = threading.Event()

    def main() -> None:  # sqlite belongs to the thread that opens it
        rig.__init__(wiring, tmp_path / "store")  # type: ignore[misc]
        ready.set()
        rig.loop()

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    assert ready.wait(30)
    endpoint = wiring.endpoint("store-0")
    with Server(endpoint, wiring.context.identity, rig.worker.handlers()) as server:
        with Client(server.endpoint, LEARNER, "store-0") as client:
            yield rig, RemoteStore(client, deadline_s=20)
    rig.stop.set()
    thread.join(10)


def deliver(rig: Rig, tmp_path: Path, name: str, outcome: Outcome, source: Source = Source.POLICY) -> None:
    """What courier and intake do: spool, label, hand the durable file over; waits until it is taken."""
    spool = Spool(tmp_path / "spool", "robot-00-1-ab")
    writer = spool.begin(name, 1000)
    for frame in make_frames(80, seed=hash(name) % 1000, source=source):
        writer.append(encode_frame(frame))
    writer.finish()
    header, label = make_header(name, outcome)
    spool.label(name, encode_label(header, label))
    incoming = tmp_path / "store" / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    path = incoming / f"{name}.episode"
    spool.pending()[0].path.rename(path)
    db = rundb.open_db(rig.wiring.run_dir)
    rundb.start_episode(db, name, "robot-00", "robot-00-1-ab", "toy-1", 1.0)
    rig.worker.on_episode(name, path)
    done = threading.Event()
    rig.jobs.put(done.set)
    assert done.wait(20)


def test_success_becomes_chunks_and_a_notice(wiring: Wiring, tmp_path: Path) -> None:
    with running(wiring, tmp_path) as (rig, store):
        deliver(rig, tmp_path, "good", Outcome.SUCCESS)
        (notice,) = store.next_experience(8)
        assert (notice.kind, notice.episode, notice.num_frames) == ("success", "good", 80)
        assert notice.state.shape == (27, 3) and notice.objects is not None
        store.embedded("good")
        assert store.next_experience(8) == []
        batch = store.sample(16, seed=1)
        assert batch is not None and batch.actions.shape == (16, 6, 3) and batch.action_mask.dtype == bool
        assert {episode for episode, _ in batch.keys} == {"good"}
        np.testing.assert_allclose(batch.probabilities, 1 / 80)


def test_failure_is_a_query_and_never_a_target(wiring: Wiring, tmp_path: Path) -> None:
    with running(wiring, tmp_path) as (rig, store):
        deliver(rig, tmp_path, "good", Outcome.SUCCESS)
        deliver(rig, tmp_path, "bad", Outcome.FAILURE)
        assert [notice.kind for notice in store.next_experience(8)] == ["success", "failure"]
        assert store.apply_event("bad", [("good", 10, 40)]) is True
        assert store.apply_event("bad", [("good", 10, 40)]) is False, "one failure is one event"
        batch = store.sample(256, seed=2)
        assert batch is not None and {episode for episode, _ in batch.keys} == {"good"}
        inside = np.mean([10 <= start < 35 for _, start in batch.keys])
        assert inside > 0.4  # weight 1.44 inside against 0.44 outside: expected 0.6, uniform would give 0.31


def test_expert_actions_never_reach_the_table(wiring: Wiring, tmp_path: Path) -> None:
    with running(wiring, tmp_path) as (rig, store):
        deliver(rig, tmp_path, "shown", Outcome.SUCCESS, source=Source.SCRIPT)
        assert store.sample(4, seed=0) is None
        assert store.counters()["window_chunks"] == 0


def test_damaged_episode_is_kept_aside_and_reported(wiring: Wiring, tmp_path: Path) -> None:
    with running(wiring, tmp_path) as (rig, store):
        path = tmp_path / "store" / "incoming" / "torn.episode"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not an episode")
        rig.worker.on_episode("torn", path)
        deliver(rig, tmp_path, "good", Outcome.SUCCESS)
        assert (tmp_path / "store" / "rejected" / "torn.episode").exists()
        assert store.counters()["window_episodes"] == 1
        assert [kind for kind, _ in wiring.context.reports] == ["episode refused"]  # type: ignore[attr-defined]


def test_refused_operation_says_why(wiring: Wiring, tmp_path: Path) -> None:
    with running(wiring, tmp_path) as (_, store), pytest.raises(RemoteError, match="no failure of this store"):
        store.apply_event("unknown", [])
