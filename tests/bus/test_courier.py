"""Delivery from the spool to stores: resumes, never doubles, and deletes only what was acknowledged."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time

import pytest

from cel_jax.bus.bandwidth import TokenBucket
from cel_jax.bus.courier import Courier
from cel_jax.bus.errors import Conflict, SpaceError, WireError
from cel_jax.bus.identity import Identity
from cel_jax.bus.message import Request
from cel_jax.bus.receiver import EpisodeReceiver
from cel_jax.bus.records import read_episode
from cel_jax.bus.spool import Spool

PIECE = 1000


class Store:
    """A receiver, its server, and what came in."""

    def __init__(self, net, name="store-0", *, frames=0, piece=lambda whole, request: whole(request), **more) -> None:
        self.net, self.name, self.got = net, name, []
        self.arrived = threading.Condition()
        self.receiver = EpisodeReceiver(
            net.folder.parent / name, self._take, frames=lambda: frames, spare_bytes=0, **more
        )
        handlers = {**self.receiver.handlers(), "piece": lambda request: piece(self.receiver.piece, request)}
        self.server = net.server(handlers, name=name, station=name)

    def _take(self, episode_id, path) -> None:
        with self.arrived:
            self.got.append((episode_id, path.read_bytes()))
            self.arrived.notify_all()

    def client(self):
        return self.net.client(self.name, expected=self.name)


def _spool(net, *ids, size=20 * PIECE) -> Spool:
    spool = Spool(net.folder.parent / "spool", "w-1", spare_bytes=0)
    for number, episode_id in enumerate(ids):
        writer = spool.begin(episode_id, size)
        writer.append(bytes([number]) * size)
        writer.finish()
        spool.label(episode_id, b"success")
    return spool


class Delivered:
    """Waits for acknowledgements of a courier."""

    def __init__(self) -> None:
        self.stores: dict[str, str] = {}
        self._changed = threading.Condition()

    def __call__(self, episode_id, store) -> None:
        with self._changed:
            self.stores[episode_id] = store
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.stores) >= count, 15), self.stores


def _ask(op_handler, buffers=(), **head):
    who = Identity("robot-0", "w-1", "environment")
    return op_handler(Request("op", 1, who, "store-0", 0, 1.0, head, buffers)).header


def test_episodes_arrive_whole_and_leave_the_spool(net):
    spool, done = _spool(net, "e-1", "e-2"), Delivered()
    sent = {episode.id: episode.path.read_bytes() for episode in spool.pending()}
    store = Store(net)
    with Courier(spool, [store.client()], piece_bytes=PIECE, on_stored=done):
        done.wait(2)
    assert store.got == sorted(sent.items()) and not any(spool.folder.iterdir())
    path = net.folder.parent / "store-0" / "incoming" / "e-1.episode"
    assert read_episode(path).label == b"success"


def test_resumes_where_the_killed_receiver_stopped(net):
    spool, done, failures = _spool(net, "e-1"), Delivered(), []
    cut, offsets = threading.Event(), []

    def die_after_ten(whole, request):
        if request.header["offset"] >= 10 * PIECE:
            cut.set()
            raise RuntimeError("the disk is gone")
        return whole(request)

    def note(whole, request):
        reply = whole(request)  # refuses what is left over from the connection that broke
        offsets.append(request.header["offset"])
        return reply

    store = Store(net, piece=die_after_ten)
    with Courier(
        spool, [store.client()], piece_bytes=PIECE, on_stored=done, on_failure=failures.append, max_backoff_s=0.1
    ):
        assert cut.wait(10)
        store.server.close()
        heir = Store(net, piece=note)
        done.wait(1)
    assert offsets[0] == 10 * PIECE and offsets == sorted(set(offsets))
    assert [episode_id for episode_id, _ in heir.got] == ["e-1"] and not store.got
    assert {failure.kind for failure in failures} == {"transfer_failed"} and failures[0].station == "store-0"


def test_lost_acknowledgement_does_not_store_twice(net):
    spool, done = _spool(net, "e-1"), Delivered()
    store = Store(net)
    commit = store.receiver.commit

    def store_and_lose_the_reply(request):
        commit(request)
        store.server._handlers["commit"] = commit
        raise RuntimeError("lost")

    store.server._handlers["commit"] = store_and_lose_the_reply
    with Courier(spool, [store.client()], piece_bytes=PIECE, on_stored=done, max_backoff_s=0.1):
        done.wait(1)
    assert len(store.got) == 1
    ledger = (net.folder.parent / "store-0" / "stored.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in ledger] == ["e-1"]


def test_the_store_with_the_fewest_frames_takes_it(net):
    done = Delivered()
    stores = [Store(net, "store-0", frames=50), Store(net, "store-1", frames=20), Store(net, "store-2", frames=90)]
    with Courier(_spool(net, "e-1"), [store.client() for store in stores], on_stored=done):
        done.wait(1)
    assert done.stores == {"e-1": "store-1"}


def test_a_full_store_declines_and_another_takes_it(net):
    done = Delivered()
    full, empty = Store(net, "store-0", free=lambda _: 0), Store(net, "store-1", frames=9)
    with Courier(_spool(net, "e-1"), [full.client(), empty.client()], on_stored=done, max_backoff_s=0.1):
        done.wait(1)
    assert done.stores == {"e-1": "store-1"} and not full.got


def test_an_episode_stays_with_its_store_until_that_is_revoked(net):
    spool, done, failures = _spool(net, "e-1"), Delivered(), []
    spool.assign("e-1", "store-gone")
    failed = threading.Event()
    with Courier(
        spool,
        [Store(net).client()],
        on_stored=done,
        on_failure=lambda failure: failures.append(failure) or failed.set(),
        max_backoff_s=0.1,
    ):
        assert failed.wait(10) and not done.stores and "store-gone" in failures[0].detail
        assert spool.revoke("store-gone") == ["e-1"]
        done.wait(1)
    assert done.stores == {"e-1": "store-0"}


def test_receiver_refuses_what_does_not_fit(net):
    receiver = EpisodeReceiver(net.folder / "s", lambda *_: None, spare_bytes=5, free=lambda _: 100, max_open=2)
    sha = "0" * 64
    for bad in ("../e", "", None, "a.b"):
        with pytest.raises(WireError, match="episode id"):
            _ask(receiver.offer, id=bad, total_bytes=1, sha256=sha)
    with pytest.raises(SpaceError, match=r"'e-1'.*101 bytes are needed"):
        _ask(receiver.offer, id="e-1", total_bytes=96, sha256=sha)
    with pytest.raises(WireError, match="offer it again"):
        _ask(receiver.piece, [b"x"], id="e-1", offset=0)
    assert _ask(receiver.offer, id="e-1", total_bytes=4, sha256=sha) == {"status": "accept", "offset": 0}
    assert _ask(receiver.piece, [b"xx"], id="e-1", offset=2) == {"offset": 0}
    assert _ask(receiver.piece, [b"xxxxx"], id="e-1", offset=0) == {"offset": 0}
    with pytest.raises(WireError, match="0 of 4"):
        _ask(receiver.commit, id="e-1")
    assert _ask(receiver.piece, [b"xxxx"], id="e-1", offset=0) == {"offset": 4}
    with pytest.raises(Conflict, match="SHA-256"):
        _ask(receiver.commit, id="e-1")
    assert _ask(receiver.offer, id="e-1", total_bytes=4, sha256=sha)["offset"] == 0


def test_everything_is_synced_before_the_acknowledgement(net, monkeypatch):
    synced, real = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino) or real(fd))
    folder, seen = net.folder / "s", []

    def at_callback(_, path):
        wanted = [path, path.parent, folder / "stored.jsonl"]
        seen.extend(place.stat().st_ino in synced for place in wanted)

    receiver = EpisodeReceiver(folder, at_callback, spare_bytes=0)
    sha = hashlib.sha256(b"abc").hexdigest()
    _ask(receiver.offer, id="e-1", total_bytes=3, sha256=sha)
    _ask(receiver.piece, [b"abc"], id="e-1", offset=0)
    assert _ask(receiver.commit, id="e-1") == {"status": "stored"} and seen == [True] * 3


@pytest.mark.parametrize("torn", [b"", b'{"id": "e-9", "sh'])
def test_receiver_restarts_between_rename_and_ledger(net, torn):
    folder, got = net.folder / "s", []
    EpisodeReceiver(folder, lambda *_: None)
    (folder / "incoming" / "e-1.episode").write_bytes(b"abc")
    (folder / "stored.jsonl").write_bytes(torn)
    receiver = EpisodeReceiver(folder, lambda id, path: got.append(id))
    assert receiver.stored_ids == {"e-1"} and receiver.recover() == ["e-1"] == got
    assert EpisodeReceiver(folder, lambda *_: None).stored_ids == {"e-1"}
    with pytest.raises(Conflict, match="other content"):
        _ask(receiver.offer, id="e-1", total_bytes=3, sha256="0" * 64)


def test_courier_keeps_its_bandwidth(net):
    spool, done = _spool(net, "e-1"), Delivered()
    start_s = time.monotonic()
    with Courier(spool, [Store(net).client()], piece_bytes=PIECE, limit_bytes_s=40 * PIECE, on_stored=done):
        done.wait(1)
    assert time.monotonic() - start_s >= (20 - 2) / 40  # two pieces go at once


def test_token_bucket_keeps_the_rate():
    now = [0.0]
    bucket = TokenBucket(100.0, 50, lambda: now[0])
    for _ in range(40):
        now[0] += bucket.take(25)
    assert now[0] == pytest.approx((40 * 25 - 50) / 100.0)
    assert TokenBucket(0, 1).take(1 << 40) == 0.0
