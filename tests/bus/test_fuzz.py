"""100,000 malformed, mutated, replayed and oversized messages against a home and a store's intake, while a robot works.

Guided by outcomes: a message whose answer (kind and wording) was not seen before joins the corpus and is mutated on.
"""

from __future__ import annotations

import random
import re
import threading
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from cel_jax.bus.channels import ActionReply, InferenceFeed, ObservationClient, StepId
from cel_jax.bus.home import Home, HomeLimits
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.message import Limits, Request, decode_reply, encode_request
from cel_jax.bus.queue import QueueLimits
from cel_jax.bus.receiver import EpisodeReceiver
from cel_jax.bus.transport import Client, Server

MESSAGES = 100_000
STRANGER = Identity("robot-9", "w-stranger", "environment")
ODD: tuple[Any, ...] = (
    None, -1, 0, 1, 2**31, 2**63 - 1, -(2**62), 0.0, float("nan"), float("inf"), -1e300, "", "x", "../../etc/passwd",
    "/", "a\x00b", "é" * 300, b"", b"\xff" * 9, [], [None], {}, {"a": 1}, True, False, "0" * 64, [["a"]] * 3,
)  # fmt: skip
SEEDS: tuple[tuple[str, dict[str, Any], list[bytes]], ...] = (
    ("request", {"channel": "c", "key": "k", "station": "robot-9", "worker": "w-stranger", "episode": "e", "step": 1,
                 "task": "t", "arrays": {}}, [b"abc"]),
    ("fetch", {"channel": "c", "target": 2, "timeout_s": 0.0, "wait_s": 0.01}, []),
    ("answer", {"channel": "c", "items": [{"worker": "w-stranger", "episode": "e", "step": 1, "buffers": 1}]}, [b"x"]),
    ("retire", {"worker": "w-nobody"}, []),
    ("offer", {"id": "fuzz-1", "total_bytes": 10, "sha256": "0" * 64}, []),
    ("piece", {"id": "fuzz-1", "offset": 0}, [b"12345"]),
    ("commit", {"id": "fuzz-1"}, []),
    ("stats", {}, []),
)  # fmt: skip


class Fuzzer:
    """Mutates messages of the corpus; keeps those with a new outcome."""

    def __init__(self, seed: int) -> None:
        self.rng, self.outcomes = random.Random(seed), set[str]()
        self.corpus = [
            [bytes(frame) for frame in encode_request(Request(op, 0, STRANGER, "home", 0, 0.05, head, data))]
            for op, head, data in SEEDS
        ]

    def message(self) -> list[bytes]:
        frames = [bytes(frame) for frame in self.rng.choice(self.corpus)]
        for _ in range(self.rng.randint(0, 3)):
            frames = self.rng.choice((self._field, self._field, self._bytes, self._frames))(frames)
        return frames

    def learn(self, frames: list[bytes], outcome: str) -> None:
        """Keeps a message whose outcome is new."""
        if outcome not in self.outcomes and len(self.corpus) < 400:
            self.outcomes.add(outcome)
            self.corpus.append(frames)

    def _field(self, frames: list[bytes]) -> list[bytes]:
        """Another value, a missing or a surplus field, in the envelope or in the body."""
        try:
            head = msgpack.unpackb(frames[0], strict_map_key=False)
            place = self.rng.choice((head, head["body"], head["body"]))
            name = self.rng.choice([*place, "surplus"])
            if self.rng.random() < 0.2:
                place.pop(name, None)
            else:
                place[name] = self.rng.choice(ODD)
            return [msgpack.packb(head), *frames[1:]]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, msgpack.UnpackException):
            return self._bytes(frames)

    def _bytes(self, frames: list[bytes]) -> list[bytes]:
        """Flipped, cut or doubled bytes."""
        if not frames:
            return [self.rng.randbytes(5)]
        at = self.rng.randrange(len(frames))
        data = bytearray(frames[at])
        for _ in range(self.rng.randint(1, 4)):
            if data:
                data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        data = data[: self.rng.randint(0, len(data))] if self.rng.random() < 0.2 else data
        return [*frames[:at], bytes(data), *frames[at + 1 :]]

    def _frames(self, frames: list[bytes]) -> list[bytes]:
        """Too many frames, none, or large ones."""
        extra = [self.rng.randbytes(self.rng.choice((0, 1, 5000))) for _ in range(self.rng.randint(0, 5))]
        return self.rng.choice((frames[:1], frames + extra, extra or [b""], [*frames, *frames]))


class Robot:
    """An honest robot and an honest inference worker, all the while."""

    def __init__(self, endpoint: str) -> None:
        self.answers, self.wrong, self._stop = 0, 0, threading.Event()
        self._endpoint = endpoint
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._ask, self._infer)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    def _ask(self) -> None:
        me = Identity("robot-0", new_worker_id(), "environment")
        with Client(self._endpoint, me, "home") as client:
            infer = ObservationClient(client, "honest")
            while not self._stop.is_set():
                state = np.asarray([self.answers], np.float32)
                step = StepId(me.station, me.worker, "e", self.answers)
                reply = infer.infer(step, "t", {"state": state}, 10.0)
                self.wrong += float(reply.arrays["actions"][0]) != self.answers
                self.answers += 1

    def _infer(self) -> None:
        with Client(self._endpoint, Identity("gpu-0", new_worker_id(), "inference"), "home") as client:
            feed = InferenceFeed([client], "honest")
            while not self._stop.is_set():
                batch = feed.fetch(4, 0.0, 0.2)
                feed.answer([ActionReply(item.id, 1, {"actions": item.arrays["state"]}) for item in batch])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hostile_messages_harm_nobody(tmp_path: Path, net: Any) -> None:
    failures: list[Any] = []
    home = Home(HomeLimits(lease_s=1.0, queue=QueueLimits(items=64, total_bytes=1 << 20)))
    receiver = EpisodeReceiver(tmp_path / "store", lambda id, path: None, spare_bytes=0)
    limits = Limits(header_bytes=20_000, buffers=64, total_bytes=100_000)
    me = Identity("home", new_worker_id(), "home")
    handlers = {**receiver.handlers(), **home.handlers()}
    with Server(net.endpoint(), me, handlers, tick=home.tick, on_failure=failures.append, limits=limits) as server:
        robot = Robot(net.endpoint())
        try:
            fuzzer = attack(net.endpoint(), MESSAGES)
            before = robot.answers
            attack(net.endpoint(), 2000, seed=1)
        finally:
            robot.close()
    counts = server.counters.snapshot()
    assert counts["malformed"] + counts["requests"] >= MESSAGES * 0.99, counts
    assert not failures and not counts.get("handler_failed"), (failures[:3], counts)
    assert robot.wrong == 0 and robot.answers > before > 100, "the honest robot goes on, with its own actions"
    assert len(fuzzer.outcomes) > 30, sorted(fuzzer.outcomes)
    assert home.stats(None).header["channels"].keys() <= {*home._channels}  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} <= {"store", "ipc"}, "nothing outside of the run's folders"
    names = [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+\.(part|episode)|stored\.jsonl", name) for name in names), names


def attack(endpoint: str, count: int, seed: int = 0) -> Fuzzer:
    """Sends `count` messages over one raw socket, reading every answer; a socket that libzmq closed is replaced."""
    fuzzer, sent = Fuzzer(seed), dict[int, list[bytes]]()
    raw = _socket(endpoint)
    for number in range(count):
        frames = fuzzer.message() or [b""]
        numbered = _numbered(frames, number)
        sent[number] = frames
        raw.send_multipart(numbered)
        while raw.poll(0):
            answer = decode_reply(raw.recv_multipart(), Limits())
            text = re.sub(r"[0-9]+|'[^']*'", "_", str(answer.header.get("message", "ok")))[:60]
            fuzzer.learn(sent.pop(answer.call, SEEDS_FRAMES), text)
        if len(sent) > 5000:
            sent.pop(next(iter(sent)))
    raw.poll(1000)
    raw.close(linger=2000)
    return fuzzer


SEEDS_FRAMES = [bytes(frame) for frame in encode_request(Request("stats", 0, STRANGER, "home", 0, 0.05, {}))]


def _numbered(frames: list[bytes], number: int) -> list[bytes]:
    """The call's number lets an answer be matched; what cannot be read any more stays as it is."""
    try:
        head = msgpack.unpackb(frames[0], strict_map_key=False)
        if isinstance(head, dict) and type(head.get("call")) is int:
            return [msgpack.packb({**head, "call": number}), *frames[1:]]
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return frames


def _socket(endpoint: str) -> zmq.Socket[bytes]:
    raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    raw.sndtimeo = 20_000
    raw.connect(endpoint)
    return raw
