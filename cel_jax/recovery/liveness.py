"""The agent's liveness socket, on a thread of its own: beats come in, acknowledgements and commands go out.

Nothing else runs here, so a busy agent never makes a living worker look dead.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from typing import Any

import zmq

from cel_jax.recovery import wire

POLL_MS = 20
MAIL = {"result": {"call", "ok", "value"}, "report": {"kind", "detail"}}


@dataclasses.dataclass(frozen=True)
class Beat:
    """The last word of a worker. at_s: this machine's monotonic clock. stalled_s: silence of its main loop."""

    at_s: float
    state: str
    note: str
    stalled_s: float
    membership: int


class Liveness:
    """Beats by worker id, and the mail of the workers for the agent's loop."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = wire.bind_router(self._context, address)
        self._beats: dict[str, Beat] = {}
        self._lock = threading.Lock()
        self._inbox: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue(wire.MAX_QUEUE)
        self._outbox: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue(wire.MAX_QUEUE)
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    def beats(self) -> dict[str, Beat]:
        """A copy of the last beat of every worker heard of."""
        with self._lock:
            return dict(self._beats)

    def forget(self, worker: str) -> None:
        """Drops a dead worker's beat."""
        with self._lock:
            self._beats.pop(worker, None)

    def mail(self) -> list[tuple[str, dict[str, Any]]]:
        """Reports and results since the last call, as (worker id, message), in order."""
        if self.failure is not None:
            raise RuntimeError("the liveness thread died") from self.failure
        return _drain(self._inbox)

    def send(self, worker: str, message: dict[str, Any]) -> None:
        """Queues a command for a worker that has beaten at least once. Raises queue.Full if the thread is stuck."""
        self._outbox.put_nowait((worker, message))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._socket.poll(POLL_MS):
                    self._receive()
                for worker, message in _drain(self._outbox):
                    self._post(worker, message)
        except BaseException as error:
            self.failure = error  # raised in the agent's loop by mail()

    def _receive(self) -> None:
        frames = self._socket.recv_multipart()
        if len(frames) != 2:
            return  # not one of ours; the reply address alone is no message
        worker = frames[0].decode(errors="replace")
        try:
            self._take(worker, wire.unpack(frames[1]))
        except (wire.WireError, KeyError) as error:  # one worker's fault is not the fleet's
            detail = f"{type(error).__name__}: {error}"
            self._inbox.put_nowait((worker, {"t": "report", "kind": "malformed message", "detail": detail}))

    def _take(self, worker: str, message: dict[str, Any]) -> None:
        if message["t"] == "beat":
            self._take_beat(worker, message)
        elif message["t"] in MAIL:
            if not MAIL[message["t"]] <= set(message):
                raise KeyError(f"{message['t']} needs {sorted(MAIL[message['t']])}, got {sorted(message)}")
            self._inbox.put_nowait((worker, message))
        else:
            raise KeyError(f"unknown kind {message['t']!r}")

    def _take_beat(self, worker: str, message: dict[str, Any]) -> None:
        beat = Beat(
            time.monotonic(), message["state"], message["note"], message["stalled_s"], message["membership"]
        )  # fmt: skip
        with self._lock:
            self._beats[worker] = beat
        self._post(worker, {"t": "ack"})

    def _post(self, worker: str, message: dict[str, Any]) -> None:
        try:
            self._socket.send_multipart([worker.encode(), wire.pack(message)], flags=zmq.DONTWAIT)
        except zmq.Again:
            return  # a stopped worker's queue is full; its silence ends it


def _drain(source: queue.Queue[Any]) -> list[Any]:
    items = []
    while True:
        try:
            items.append(source.get_nowait())
        except queue.Empty:
            return items
