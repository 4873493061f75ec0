"""The serving side of SwarmLink: one ROUTER socket, one thread, many calls at a time."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from cel_jax.bus.arrays import Buffer
from cel_jax.bus.deferred import Deferred, error_reply
from cel_jax.bus.endpoints import prepare_bind
from cel_jax.bus.errors import BindError, BusError, EpochAdvanced, StaleIdentity, WireError
from cel_jax.bus.failures import Counters, Failure, OnFailure
from cel_jax.bus.identity import Identity, Registry
from cel_jax.bus.io_thread import IoThread
from cel_jax.bus.message import Limits, Reply, Request, decode_request, encode_reply
from cel_jax.bus.security import ZAP_ENDPOINT, ServerCurve, answer_zap, apply_server_curve

Handler = Callable[[Request], Reply | Deferred]
Tick = Callable[[], float]
_log = logging.getLogger(__name__)
_RECEIVE_BURST = 64  # messages taken before answers and timers get their turn
_IDLE_S = 1.0


@dataclasses.dataclass(frozen=True)
class _Route:
    """Where an answer goes. It does not keep the request, whose buffers may be large."""

    peer: bytes
    call: int
    epoch: int
    number: int = -1
    deferred: Deferred | None = None


class Server:
    """Serves `handlers` (operation -> handler) at an endpoint until `close`.

    Handlers run on the server's thread and should be short; a long one returns a `Deferred`. `tick` is called on the
    same thread and returns the seconds until it wants to be called again. With a `registry`, requests of dead workers
    are refused. `epoch` is the connection group's: a request of an older one is refused, with the epoch to join.
    Raises BindError when the endpoint cannot be taken.
    """

    def __init__(
        self,
        endpoint: str,
        identity: Identity,
        handlers: Mapping[str, Handler],
        curve: ServerCurve | None = None,
        *,
        tick: Tick | None = None,
        registry: Registry | None = None,
        epoch: int = 0,
        on_failure: OnFailure | None = None,
        limits: Limits = Limits(),  # noqa: B008  frozen
        max_deferred: int = 65_536,
        heartbeat_s: float = 2.0,
        peer_timeout_s: float = 10.0,
    ) -> None:
        self.identity, self.epoch, self.counters = identity, epoch, Counters()
        self._handlers, self._tick, self._registry = dict(handlers), tick, registry
        self._on_failure, self._limits, self._max_deferred = on_failure, limits, max_deferred
        self._curve, self._times_s = curve, (heartbeat_s, peer_timeout_s)
        self._open: dict[int, Deferred] = {}
        self._expiries: list[tuple[float, int]] = []
        self._numbers = itertools.count()
        self._outbox: collections.deque[tuple[_Route, Reply]] = collections.deque()
        self._io = IoThread(f"serve-{identity.station}", self._guarded_run)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.endpoint = self._bind(endpoint)
        self._io.start()

    def advance_epoch(self, epoch: int) -> None:
        """The connection group was rebuilt: requests of older epochs are refused from now on."""
        self.epoch = max(self.epoch, epoch)

    def close(self) -> None:
        """Stops serving; callers that still wait see PeerLost. Idempotent."""
        self._io.close("a handler is stuck")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- binding

    def _bind(self, endpoint: str) -> str:
        try:
            prepare_bind(endpoint, self._curve is not None)
            self._zap = self._bind_zap() if self._curve else None
            self._socket = self._make_socket()
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise BindError(
                f"station {self.identity.station!r} cannot bind {endpoint!r}: {error}; "
                "stop the process that holds it or choose another endpoint"
            ) from error
        except BindError:
            self._context.destroy(linger=0)
            raise
        if endpoint.startswith("ipc://"):
            os.chmod(endpoint[len("ipc://") :], 0o600)
        return bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()  # type: ignore[arg-type]

    def _bind_zap(self) -> zmq.Socket[bytes]:
        zap = self._context.socket(zmq.REP)
        zap.linger = 0
        zap.bind(ZAP_ENDPOINT)
        return zap

    def _make_socket(self) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        heartbeat_s, timeout_s = self._times_s
        router.linger = 0
        router.router_mandatory = True  # an unroutable answer is an error that can be counted, not a silent drop
        router.maxmsgsize = self._limits.total_bytes
        router.heartbeat_ivl, router.heartbeat_timeout = int(heartbeat_s * 1e3), int(timeout_s * 1e3)
        if self._curve:
            apply_server_curve(router, self._curve)
        return router

    # --- the thread

    def _guarded_run(self) -> None:
        try:
            self._run()
        except Exception as error:
            _log.exception("server of station %s died", self.identity.station)
            self._report("thread_died", f"{type(error).__name__}: {error}")
        finally:
            for deferred in self._open.values():
                deferred.abandon()
            self._context.destroy(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._io.waker.fd, zmq.POLLIN)
        if self._zap:
            poller.register(self._zap, zmq.POLLIN)
        wait_s = 0.0
        while not self._io.ending:
            ready = dict(poller.poll(max(0, int(wait_s * 1e3 + 0.999))))
            if self._io.waker.fd in ready:
                self._io.waker.drain()
            if self._zap in ready:
                self._authenticate()
            self._receive()
            tick_s = self._tick() if self._tick else _IDLE_S
            self._send()
            wait_s = min(tick_s, self._expire(), _IDLE_S)

    def _authenticate(self) -> None:
        assert self._zap is not None and self._curve is not None
        answer, admitted = answer_zap(self._zap.recv_multipart(), self._curve.allowed)
        if not admitted:
            self.counters.add("refused_keys")
        self._zap.send_multipart(answer)

    def _receive(self) -> None:
        for _ in range(_RECEIVE_BURST):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take(frames[0].bytes, [frame.buffer for frame in frames[1:]], self._key_name(frames))
        self._io.waker.wake()  # more may wait

    def _key_name(self, frames: Sequence[zmq.Frame]) -> str:
        """The name of the key on whose connection a message came; libzmq notes it with every frame."""
        return str(frames[-1].get("User-Id")) if self._curve is not None else ""

    def _take(self, peer: bytes, frames: Sequence[Buffer], key_name: str = "") -> None:
        try:
            request = decode_request(frames, self._limits)
        except WireError as error:
            self.counters.add("malformed")
            _log.warning("station %s: malformed message: %s", self.identity.station, error)
            return
        self.counters.add("requests")
        answer = self._handle(request, key_name)
        if isinstance(answer, Deferred):
            self._defer(peer, request, answer)
        else:
            self._outbox.append((_Route(peer, request.call, request.epoch), answer))

    def _handle(self, request: Request, key_name: str) -> Reply | Deferred:
        try:
            if self._curve is not None:
                self._curve.check(key_name, request.sender, request.op)
            self._check(request)
            return self._handlers[request.op](request)
        except BusError as error:
            self.counters.add(f"refused_{error.kind}")
            return error_reply(error.kind, str(error), epoch=self.epoch)
        except Exception as error:  # one bad call must not take the server from everyone else
            self.counters.add("handler_failed")
            _log.exception("station %s: operation %s failed", self.identity.station, request.op)
            detail = f"{request.op}: {type(error).__name__}: {error}"
            self._report("handler_failed", detail)
            return error_reply("handler_failed", detail)

    def _check(self, request: Request) -> None:
        if request.to != self.identity.station:
            raise StaleIdentity(f"addressed to station {request.to!r}, this is {self.identity.station!r}")
        if request.epoch < self.epoch:
            raise EpochAdvanced(f"epoch {request.epoch} is over, this group is at {self.epoch}; rejoin")
        if self._registry is not None and self._registry.is_dead(request.sender.worker):
            raise StaleIdentity(f"worker {request.sender.worker!r} of {request.sender.station!r} was retired")
        if request.op not in self._handlers:
            raise WireError(f"unknown operation {request.op!r}; expected one of {sorted(self._handlers)}")

    def _defer(self, peer: bytes, request: Request, deferred: Deferred) -> None:
        if len(self._open) >= self._max_deferred:
            deferred.abandon()
            self.counters.add("refused_bound")
            full = error_reply("bound", f"station {self.identity.station!r} holds {self._max_deferred} open calls")
            self._outbox.append((_Route(peer, request.call, request.epoch), full))
            return
        route = _Route(peer, request.call, request.epoch, next(self._numbers), deferred)
        self._open[route.number] = deferred
        heapq.heappush(self._expiries, (time.monotonic() + request.deadline_s, route.number))
        deferred.bind(lambda reply: self._post(route, reply))

    def _post(self, route: _Route, reply: Reply) -> None:
        self._outbox.append((route, reply))
        if not self._io.is_current:
            self._io.waker.wake()

    def _send(self) -> None:
        while self._outbox:
            route, reply = self._outbox.popleft()
            self._open.pop(route.number, None)
            try:
                self._socket.send_multipart([route.peer, *self._encode(route, reply)], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                self._undelivered(route, error)

    def _encode(self, route: _Route, reply: Reply) -> list[Buffer]:
        full = dataclasses.replace(reply, sender=self.identity, call=route.call, epoch=route.epoch)
        try:
            return encode_reply(full)
        except WireError as error:
            self.counters.add("bad_replies")
            return encode_reply(dataclasses.replace(full, header=_explain(error), buffers=(), is_error=True))

    def _undelivered(self, route: _Route, error: zmq.ZMQError) -> None:
        if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            raise error
        self.counters.add("undelivered")
        if route.deferred is not None and route.deferred.on_undelivered is not None:
            route.deferred.on_undelivered()

    def _expire(self) -> float:
        now_s = time.monotonic()
        while self._expiries and (self._expiries[0][0] <= now_s or self._expiries[0][1] not in self._open):
            deferred = self._open.pop(heapq.heappop(self._expiries)[1], None)
            if deferred is not None and deferred.abandon():
                self.counters.add("expired_calls")
        return self._expiries[0][0] - now_s if self._expiries else _IDLE_S

    def _report(self, kind: str, detail: str) -> None:
        if self._on_failure is not None:
            self._on_failure(Failure(kind, self.identity.station, self.endpoint, detail))


def _explain(error: WireError) -> dict[str, Any]:
    return {"kind": error.kind, "message": str(error)}
