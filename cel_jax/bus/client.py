"""The calling side of SwarmLink: one DEALER socket owned by one io thread, many calls in flight."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from cel_jax.bus.arrays import Buffer
from cel_jax.bus.endpoints import require_keys
from cel_jax.bus.errors import (
    AccessRefused,
    BoundReached,
    BusError,
    ClientClosed,
    DeadlineExceeded,
    EpochAdvanced,
    PeerLost,
    RemoteError,
    WireError,
)
from cel_jax.bus.failures import Counters, Failure, OnFailure
from cel_jax.bus.identity import Identity
from cel_jax.bus.io_thread import IoThread
from cel_jax.bus.message import Limits, Reply, Request, check_size, decode_reply, encode_request
from cel_jax.bus.security import ClientCurve, apply_client_curve

_log = logging.getLogger(__name__)
_MARGIN_S = 5.0  # beyond its deadline a call ends even when the io thread is gone
_IDLE_S = 1.0
_RECEIVE_BURST = 64
_REDIAL_S = 1.0
_STALE_S = 0.02
_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclasses.dataclass
class _Call:
    request: Request
    frames: Sequence[Buffer]
    deadline_s: float  # on the monotonic clock
    future: concurrent.futures.Future[Reply]
    is_sent: bool = False

    @property
    def op(self) -> str:
        return self.request.op

    @property
    def epoch(self) -> int:
        return self.request.epoch

    def fresh_frames(self, epoch: int) -> Sequence[Buffer]:
        """The frames to send. A call that waited for a connection tells the server how long it still waits, and goes
        out under the epoch of the connection that carries it."""
        left_s = self.deadline_s - time.monotonic()
        if self.epoch != epoch:
            self.request = dataclasses.replace(self.request, epoch=epoch)
            self.frames = encode_request(self.request)
        if self.request.deadline_s - left_s < _STALE_S:
            return self.frames or encode_request(self.request)
        return encode_request(dataclasses.replace(self.request, deadline_s=max(0.0, left_s)))


class Client:
    """Calls the server of `expected_station` at `endpoint`. Thread-safe.

    Every call ends: with its reply, RemoteError, DeadlineExceeded, PeerLost (the connection broke after it was sent),
    EpochAdvanced, AccessRefused or ClientClosed. Calls made while there is no connection wait in order and go out when
    a server is back, under its epoch. Calls that a server refused because its group's epoch advanced were not executed:
    they are sent again, in order, under the new epoch. Buffers must not change before the reply.
    """

    def __init__(
        self,
        endpoint: str,
        identity: Identity,
        expected_station: str,
        curve: ClientCurve | None = None,
        *,
        epoch: int = 0,
        max_in_flight: int = 1024,
        on_failure: OnFailure | None = None,
        limits: Limits = Limits(),  # noqa: B008  frozen
        heartbeat_s: float = 2.0,
        peer_timeout_s: float = 10.0,
    ) -> None:
        require_keys(endpoint, curve is not None)
        self.endpoint, self.identity, self.expected_station = endpoint, identity, expected_station
        self.counters, self._on_failure, self._limits = Counters(), on_failure, limits
        self._curve, self._max_in_flight, self._epoch = curve, max_in_flight, epoch
        self._times_s = (heartbeat_s, peer_timeout_s)
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._outbox: collections.deque[int] = collections.deque()
        self._numbers = itertools.count(1)
        self._connected = threading.Event()
        self._last_stranger, self._redial_s = "", math.inf
        self._socket = self._make_socket()
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        self._socket.connect(endpoint)
        self._io = IoThread(f"call-{expected_station}", self._guarded_run)
        self._io.start()

    @property
    def connected(self) -> bool:
        """True while a connection to a server stands."""
        return self._connected.is_set()

    @property
    def epoch(self) -> int:
        return self._epoch

    def call(
        self, op: str, header: Mapping[str, Any] | None = None, buffers: Sequence[Buffer] = (), deadline_s: float = 10.0
    ) -> Reply:
        """Sends one call and waits for its reply, at most `deadline_s` seconds."""
        future = self.submit(op, header, buffers, deadline_s)
        try:
            return future.result(deadline_s + _MARGIN_S)
        except concurrent.futures.TimeoutError as error:
            if isinstance(error, BusError):
                raise
            raise DeadlineExceeded(self._describe(op, "its io thread does not respond")) from error

    def submit(
        self, op: str, header: Mapping[str, Any] | None = None, buffers: Sequence[Buffer] = (), deadline_s: float = 10.0
    ) -> concurrent.futures.Future[Reply]:
        """Sends one call and returns the future of its reply. Raises BoundReached, ClientClosed or WireError."""
        number = next(self._numbers)
        epoch = self._epoch
        request = Request(
            op, number, self.identity, self.expected_station, epoch, float(deadline_s), header or {}, buffers
        )
        frames = encode_request(request)
        check_size(frames, self._limits)
        future: concurrent.futures.Future[Reply] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self._enqueue(number, _Call(request, frames, time.monotonic() + deadline_s, future))
        return future

    def advance_epoch(self, epoch: int) -> None:
        """Joins a rebuilt connection group; an older epoch is refused. Calls that went out on the older group's
        connection end with EpochAdvanced; those that still wait are sent on the new one, in order."""
        with self._lock:
            if epoch <= self._epoch:
                return
            self._epoch = epoch
        detail = f"the group advanced to epoch {epoch}"
        self._end_calls(lambda call: call.is_sent and call.epoch < epoch, EpochAdvanced, detail)

    def close(self) -> None:
        """Ends every wait with ClientClosed. Idempotent."""
        with self._lock:  # no call comes in after this
            self._io.end()
        self._io.close("a callback is stuck")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- calls

    def _enqueue(self, number: int, call: _Call) -> None:
        with self._lock:
            if not self._io.serves:
                raise ClientClosed(self._describe(call.op, "the client is closed"))
            if len(self._calls) >= self._max_in_flight:
                raise BoundReached(self._describe(call.op, f"{self._max_in_flight} calls are in flight already"))
            self._calls[number] = call
            self._outbox.append(number)
            self._io.waker.wake()

    def _end_calls(self, which: Any, error: type[BusError], detail: str) -> int:
        with self._lock:
            numbers = [number for number, call in self._calls.items() if which(call)]
            ended = [self._calls.pop(number) for number in numbers]
        for call in ended:
            call.future.set_exception(error(self._describe(call.op, detail)))
        return len(ended)

    def _describe(self, op: str, detail: str) -> str:
        return f"{op} at station {self.expected_station!r} ({self.endpoint}): {detail}"

    def _report(self, kind: str, detail: str) -> None:
        self.counters.add(kind)
        if self._on_failure is not None:
            self._on_failure(Failure(kind, self.expected_station, self.endpoint, detail))

    # --- the io thread

    def _make_socket(self) -> zmq.Socket[bytes]:
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        heartbeat_s, timeout_s = self._times_s
        dealer.linger = 0
        dealer.immediate = True  # while there is no connection, calls wait here and not in a pipe that may be lost
        dealer.maxmsgsize = self._limits.total_bytes
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = 20, 500
        dealer.heartbeat_ivl, dealer.heartbeat_timeout = int(heartbeat_s * 1e3), int(timeout_s * 1e3)
        if self._curve:
            apply_client_curve(dealer, self._curve)
        return dealer

    def _guarded_run(self) -> None:
        detail = "the client was closed"
        try:
            self._run()
        except Exception as error:
            detail = f"its io thread died: {type(error).__name__}: {error}"
            _log.exception("client of station %s died", self.expected_station)
            self._report("thread_died", detail)
        finally:
            self._io.end()
            self._end_calls(lambda call: True, ClientClosed, detail)
            self._connected.clear()
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._io.waker.fd, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        wait_s = 0.0
        while not self._io.ending:
            poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._outbox else 0))
            ready = dict(poller.poll(max(0, int(wait_s * 1e3 + 0.999))))
            if self._io.waker.fd in ready:
                self._io.waker.drain()
            self._receive()  # before the monitor: a reply that came ahead of a disconnect still counts
            if self._monitor in ready:
                self._follow_connection()
            if self._redial_s < math.inf:
                self._endure_refusal()
            self._send()
            wait_s = self._expire()

    def _follow_connection(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected.set()
                self._redial_s = math.inf
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.counters.add("refused_keys")
                self._redial_s = time.monotonic() + _REDIAL_S
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self.counters.add("failed_handshakes")
            elif event == zmq.EVENT_DISCONNECTED:
                self._lose_connection()

    def _endure_refusal(self) -> None:
        self._end_calls(lambda call: True, AccessRefused, "the server does not know this CURVE key; allow it there")
        if time.monotonic() >= self._redial_s:  # libzmq gives up after a refusal, but the key may be allowed later
            self._redial_s = time.monotonic() + _REDIAL_S
            self._socket.disconnect(self.endpoint)
            self._socket.connect(self.endpoint)

    def _lose_connection(self) -> None:
        was_connected = self._connected.is_set()
        self._connected.clear()
        ended = self._end_calls(lambda call: call.is_sent, PeerLost, "the connection broke while the call was on it")
        if was_connected:
            self._report("peer_lost", f"the connection broke with {ended} calls on it")

    def _receive(self) -> None:
        for _ in range(_RECEIVE_BURST):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take([frame.buffer for frame in frames])
        self._io.waker.wake()

    def _take(self, frames: Sequence[Buffer]) -> None:
        try:
            reply = decode_reply(frames, self._limits)
        except WireError as error:
            self.counters.add("malformed")
            _log.warning("client of station %s: malformed reply: %s", self.expected_station, error)
            return
        if reply.is_error and self._rejoined(reply):
            return
        call = self._match(reply)
        if call is not None and reply.is_error:
            head = reply.header
            kind, text = str(head.get("kind", "unknown")), str(head.get("message", ""))
            call.future.set_exception(RemoteError(kind, text, call.op, self.endpoint, self.expected_station))
        elif call is not None:
            call.future.set_result(reply)

    def _rejoined(self, reply: Reply) -> bool:
        """Whether a server refused a call of an older epoch. It refuses all that was sent after it too: these calls
        go out again, in order, under its epoch; what it took before stands."""
        epoch = reply.header.get("epoch")
        if reply.header.get("kind") != EpochAdvanced.kind or type(epoch) is not int:
            return False
        with self._lock:
            call = self._calls.get(reply.call)
            if call is None or call.epoch != reply.epoch or epoch <= call.epoch:
                return False
            self._epoch = max(self._epoch, epoch)
            again = [number for number in self._calls if number >= reply.call and self._went_out_before(number)]
            for number in again:
                self._calls[number].is_sent = False
            self._outbox = collections.deque(sorted([*again, *self._outbox]))
        self.counters.add("replayed", len(again))
        return True

    def _went_out_before(self, number: int) -> bool:
        """Whether a call was sent under an epoch that is over."""
        return self._calls[number].is_sent and self._calls[number].epoch < self._epoch

    def _match(self, reply: Reply) -> _Call | None:
        assert reply.sender is not None
        if reply.sender.station != self.expected_station:
            self._last_stranger = reply.sender.station
            self.counters.add("replies_of_other_station")
            return None
        with self._lock:
            call = self._calls.get(reply.call)
            if call is None or call.epoch != reply.epoch:
                self.counters.add("stale_replies")
                return None
            return self._calls.pop(reply.call)

    def _send(self) -> None:
        while True:
            with self._lock:
                while self._outbox and self._outbox[0] not in self._calls:
                    self._outbox.popleft()
                if not self._outbox:
                    return
                call = self._calls[self._outbox[0]]
                try:  # under the lock: an epoch that advances finds each call either sent or not
                    self._socket.send_multipart(call.fresh_frames(self._epoch), zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    return
                call.is_sent, call.frames = True, ()
                self._outbox.popleft()

    def _expire(self) -> float:
        now_s = time.monotonic()
        with self._lock:
            late = [number for number, call in self._calls.items() if call.deadline_s <= now_s]
            ended = [self._calls.pop(number) for number in late]
            wait_s = min((call.deadline_s - now_s for call in self._calls.values()), default=_IDLE_S)
        for call in ended:
            detail = self._why_late(call)
            call.future.set_exception(DeadlineExceeded(self._describe(call.op, detail)))
            self._report("deadline", self._describe(call.op, detail))
        return min(wait_s, _IDLE_S)

    def _why_late(self, call: _Call) -> str:
        if not call.is_sent and self.counters["failed_handshakes"] and self._curve:
            return "no reply within the deadline: never sent, handshakes failed; is this the server's public key?"
        if not call.is_sent:
            return "no reply within the deadline: never sent, there is no connection; is the server running?"
        stranger = f"; replies of station {self._last_stranger!r} were dropped" if self._last_stranger else ""
        return f"no reply within the deadline{stranger}"
