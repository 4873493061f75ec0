"""A worker's side of HotSwarm: its identity, its heartbeat, and the commands that reach it even in a busy loop.

context = WorkerContext.from_env()
context.ready()
while not context.should_stop():
    context.progress("episode 12")
    ...
"""

from __future__ import annotations

import dataclasses
import os
import queue
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

from cel_jax.bus.identity import Identity
from cel_jax.bus.wakeup import Waker
from cel_jax.recovery import wire
from cel_jax.recovery.peers import PeerView
from cel_jax.recovery.stations import WorkerState

POLL_S = 1.0  # at most; what is queued here wakes the thread at once
ORPHAN_EXIT_CODE = 75
BROKEN_EXIT_CODE = 76
STOP_GRACE_S = 10.0
REQUIRED_ENV = ("CEL_RUN_DIR", "CEL_STATION", "CEL_WORKER", "CEL_ROLE", "CEL_CONTROL")


@dataclasses.dataclass(frozen=True)
class Command:
    """One command of a call. Answer with `WorkerContext.result(command.id, ...)`; each id comes once."""

    id: str
    name: str
    args: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """What the agent puts in a worker's environment. epoch: of its station's connection group at its launch."""

    run_dir: Path
    identity: Identity
    control: str
    heartbeat_s: float = 0.5
    agent_timeout_s: float = 30.0
    robot: int | None = None
    incarnation: int = 0
    epoch: int = 0

    def to_env(self) -> dict[str, str]:
        return {
            "CEL_RUN_DIR": str(self.run_dir),
            "CEL_STATION": self.identity.station,
            "CEL_WORKER": self.identity.worker,
            "CEL_ROLE": self.identity.role,
            "CEL_CONTROL": self.control,
            "CEL_HEARTBEAT_S": repr(self.heartbeat_s),
            "CEL_AGENT_TIMEOUT_S": repr(self.agent_timeout_s),
            "CEL_ROBOT": "" if self.robot is None else str(self.robot),
            "CEL_INCARNATION": str(self.incarnation),
            "CEL_EPOCH": str(self.epoch),
        }

    @staticmethod
    def from_env(env: Mapping[str, str]) -> WorkerSettings:
        """Raises RuntimeError naming a missing variable: workers are started by an agent."""
        missing = [key for key in REQUIRED_ENV if not env.get(key)]
        if missing:
            raise RuntimeError(f"{', '.join(missing)} not set: workers are started by a node agent")
        robot = env.get("CEL_ROBOT", "")
        return WorkerSettings(
            Path(env["CEL_RUN_DIR"]), Identity(env["CEL_STATION"], env["CEL_WORKER"], env["CEL_ROLE"]),
            env["CEL_CONTROL"],
            float(env.get("CEL_HEARTBEAT_S", "0.5")), float(env.get("CEL_AGENT_TIMEOUT_S", "30")),
            int(robot) if robot else None, int(env.get("CEL_INCARNATION", "0")), int(env.get("CEL_EPOCH", "0")),
        )  # fmt: skip


class WorkerContext:
    """The worker's view of the fleet. Thread safe; `stop_event` is set by a command, SIGTERM or a lost agent."""

    def __init__(self, settings: WorkerSettings, exit_process: Callable[[int], None] = os._exit) -> None:
        self.settings = settings
        self.identity = settings.identity
        self.run_dir = settings.run_dir
        self.robot = settings.robot
        self.stop_event = threading.Event()
        self.peers = PeerView()
        self._exit = exit_process
        self._paused = threading.Event()
        self._commands: queue.Queue[Command] = queue.Queue(256)
        self._seen: set[str] = set()
        self._outbox: queue.Queue[dict[str, Any]] = queue.Queue(wire.MAX_QUEUE)
        self._state = WorkerState.STARTING
        self._note = ""
        self._progress_s: float | None = None
        self._beat_now = threading.Event()
        self._waker = Waker()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    @staticmethod
    def from_env() -> WorkerContext:
        """Reads the agent's variables, turns SIGTERM into a stop (main thread only) and starts beating."""
        context = WorkerContext(WorkerSettings.from_env(os.environ))
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, context._on_sigterm)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return context

    def ready(self) -> None:
        """Says that start-up is over: a death from here on is no start failure."""
        self._state = WorkerState.READY
        self._beat_now.set()
        self._waker.wake()

    def progress(self, note: str = "") -> None:
        """Says that the main loop turns, with an optional word for the status page."""
        self._progress_s = time.monotonic()
        self._note = note or self._note

    def should_stop(self) -> bool:
        return self.stop_event.is_set()

    def paused(self) -> bool:
        """True while the station is paused; the worker keeps its robot still and goes on beating."""
        return self._paused.is_set()

    def commands(self) -> queue.Queue[Command]:
        """Calls addressed to this station, each id once."""
        return self._commands

    def result(self, call_id: str, value: Any = None, ok: bool = True) -> None:
        """Answers a call. Raises queue.Full if the agent has taken nothing for thousands of messages."""
        self._outbox.put_nowait({"t": "result", "call": call_id, "ok": ok, "value": value})
        self._waker.wake()

    def report(self, kind: str, detail: str, suspect: Identity | None = None) -> None:
        """Sends a failure up. With `suspect`, that worker is terminated if it still is at its station."""
        message: dict[str, Any] = {"t": "report", "kind": kind, "detail": detail}
        if suspect is not None:
            message["suspect"] = [suspect.station, suspect.worker, suspect.role]
        self._outbox.put_nowait(message)
        self._waker.wake()

    def give_up(self, reason: str) -> None:
        """Ends this process at once: a part of it died that its main loop would not notice. It is started again."""
        print(f"{self.identity.worker}: ends: {reason}", file=sys.stderr, flush=True)
        self._exit(BROKEN_EXIT_CODE)

    def close(self) -> None:
        """Stops beating once what was queued is out. The process should end next."""
        self._closed.set()
        self._waker.wake()
        self._thread.join(timeout=2.0)

    def _on_sigterm(self, number: int, frame: types.FrameType | None) -> None:
        self.stop_event.set()

    def _run(self) -> None:
        context = zmq.Context()
        socket = wire.connect_dealer(context, self.settings.control, self.identity.worker)
        try:
            self._loop(socket)
        except BaseException as error:  # a worker that cannot beat would be killed without a word
            print(f"{self.identity.worker}: heartbeat thread died: {error!r}", file=sys.stderr, flush=True)
            raise
        finally:
            context.destroy(linger=200)

    def _loop(self, socket: zmq.Socket[bytes]) -> None:
        heard_s, next_s = time.monotonic(), 0.0
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._waker.fd, zmq.POLLIN)
        while not self._closed.is_set() or not self._outbox.empty():
            if time.monotonic() >= next_s or self._beat_now.is_set():
                self._beat_now.clear()
                next_s = time.monotonic() + self.settings.heartbeat_s
                _send(socket, self._beat())
            self._send_queued(socket)
            ready = dict(poller.poll(int(1e3 * max(0.0, min(POLL_S, next_s - time.monotonic()))) + 1))
            if self._waker.fd in ready:
                self._waker.drain()
            if socket in ready:
                heard_s = time.monotonic()
                self._take(wire.unpack(socket.recv()))
            self._watch_agent(time.monotonic() - heard_s)

    def _beat(self) -> dict[str, Any]:
        stalled = 0.0 if self._progress_s is None else time.monotonic() - self._progress_s
        return {
            "t": "beat", "state": self._state.value, "note": self._note, "stalled_s": stalled,
            "membership": self.peers.version,
        }  # fmt: skip

    def _send_queued(self, socket: zmq.Socket[bytes]) -> None:
        while not self._outbox.empty():
            _send(socket, self._outbox.get_nowait())

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["t"]
        if kind == "stop":
            self.stop_event.set()
        elif kind == "pause":
            (self._paused.set if message["on"] else self._paused.clear)()
        elif kind == "membership":
            self.peers.update(message["version"], message["table"])
        elif kind == "call":
            self._take_call(message)

    def _take_call(self, message: dict[str, Any]) -> None:
        if message["id"] in self._seen:
            return
        self._seen.add(message["id"])
        self._commands.put_nowait(Command(message["id"], message["name"], message["args"]))

    def _watch_agent(self, silent_s: float) -> None:
        """Without its agent nobody could fence this worker: it stops safely, or is ended."""
        if silent_s < self.settings.agent_timeout_s:
            return
        self.stop_event.set()
        if silent_s >= self.settings.agent_timeout_s + STOP_GRACE_S:
            print(f"{self.identity.worker}: no word of its agent for {silent_s:.0f} s", file=sys.stderr, flush=True)
            self._exit(ORPHAN_EXIT_CODE)


def _send(socket: zmq.Socket[bytes], message: dict[str, Any]) -> None:
    try:
        socket.send(wire.pack(message), flags=zmq.DONTWAIT)
    except zmq.Again:
        return  # the agent is away and the queue full: beats may be lost, the watch on the agent ends this worker
