"""The gate of a run: lets the node agents of other machines join it. `python -m cel_jax.workers.gate`

A joined machine only connects out, by CURVE over TCP: it asks here for what its agent is to do (the controller's
question), and brings the agent's answer. For the controller the gate stands where a node agent would.
"""

from __future__ import annotations

import collections
import dataclasses
import sqlite3
import threading
from typing import Any

import zmq

from cel_jax.bus.deferred import Deferred
from cel_jax.bus.errors import WireError
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.server import Handler
from cel_jax.config import to_dict
from cel_jax.recovery import rundb, rundb_fleet, wire
from cel_jax.recovery.beat import WorkerContext
from cel_jax.recovery.stations import Desired
from cel_jax.workers.fleet import robot_place
from cel_jax.workers.wiring import GATE, Wiring, load_features

POLL_MS = 20
MAX_ROBOTS = 1024
MAX_NODES = 64
ROLES = dict.fromkeys(("admit", "leave", "question", "answer"), frozenset({"environment"}))


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context, gate = wiring.context, Gate(wiring)
    curve = wiring.server_curve(GATE, ROLES)
    with wiring.server(GATE, gate.handlers(), curve):
        context.ready()
        while not context.should_stop():
            gate.step()
            context.progress(f"{len(gate.nodes)} nodes joined")
    context.close()


class Gate:
    """Handlers run on the server's thread, `step` on the worker's: they meet in the nodes' queues, under a lock."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring, self._lock = wiring, threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.nodes: dict[str, Node] = {}

    def handlers(self) -> dict[str, Handler]:
        return {"admit": self.admit, "leave": self.leave, "question": self.question, "answer": self.answer}

    def admit(self, request: Request) -> Reply:
        """Header: robots (indices). Enters the node's stations; replies the run's configuration and features."""
        node, robots = node_of(request), request.header.get("robots")
        if not isinstance(robots, list) or len(robots) > MAX_ROBOTS or not all(type(one) is int for one in robots):
            raise WireError(f"node {node!r}: expected at most {MAX_ROBOTS} robot numbers, got {robots!r:.80}")
        db = rundb.open_db(self._wiring.run_dir)
        try:
            if not (request.header.get("again") and self._takes_part(db, node)):
                for index in robots:
                    place = robot_place(self._wiring.config, index, node)
                    rundb_fleet.add_station(db, dataclasses.replace(place, name=f"{node}-{place.name}"))
        finally:
            db.close()
        self._node(node)
        features = dataclasses.asdict(load_features(self._wiring.run_dir))
        return Reply({"config": to_dict(self._wiring.config), "features": features})

    def _takes_part(self, db: sqlite3.Connection, node: str) -> bool:
        """Whether the run has this node; a lost link must not end a station's maintenance."""
        mine = [desired for place, desired in rundb_fleet.stations(db) if place.placement.node == node]
        return any(desired is not Desired.OFFLINE for desired in mine)

    def leave(self, request: Request) -> Reply:
        """Takes the node's stations out of the run; what they spooled stays with them."""
        node, db = node_of(request), rundb.open_db(self._wiring.run_dir)
        try:
            names = [place.name for place, _ in rundb_fleet.stations(db) if place.placement.node == node]
            for name in names:
                rundb_fleet.set_desired(db, name, Desired.OFFLINE)
        finally:
            db.close()
        return Reply({"stations": names})

    def question(self, request: Request) -> Deferred:
        """The controller's next question to this node, as bytes; answered when there is one."""
        node, deferred = self._node(node_of(request)), Deferred()
        with self._lock:
            if node.waiting is not None:  # the node asked again: its former connection is gone
                node.waiting.abandon()
            node.waiting = deferred
        return deferred

    def answer(self, request: Request) -> Reply:
        """The agent's answer goes to the controller. Header: to (hex)."""
        node = self._node(node_of(request))
        if len(request.buffers) != 1:
            raise WireError(f"node {node.name!r}: expected one buffer, got {len(request.buffers)}")
        try:
            to = bytes.fromhex(request.header["to"])
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(
                f"node {node.name!r}: expected `to` in hex, got {request.header.get('to')!r:.80}"
            ) from error
        with self._lock:
            node.answers.append([to, bytes(request.buffers[0])])
        return Reply({})

    def step(self) -> None:
        """Carries what is due between the controller and the nodes; waits at most POLL_MS."""
        with self._lock:
            nodes = list(self.nodes.values())
            for node in nodes:
                node.open(self._wiring, self._context)
        poller = zmq.Poller()
        for node in nodes:
            poller.register(node.socket, zmq.POLLIN)
        if nodes:
            poller.poll(POLL_MS)
        else:
            self._wiring.context.stop_event.wait(POLL_MS / 1e3)
        with self._lock:
            for node in nodes:
                node.carry()

    def _node(self, name: str) -> Node:
        with self._lock:
            if name not in self.nodes and len(self.nodes) >= MAX_NODES:
                raise WireError(f"node {name!r}: this run has its bound of {MAX_NODES} joined nodes")
            return self.nodes.setdefault(name, Node(name))


class Node:
    """One joined node: a socket that stands for its agent, and what waits on either side."""

    def __init__(self, name: str) -> None:
        self.name, self.socket = name, None
        self.waiting: Deferred | None = None
        self.answers: collections.deque[list[bytes]] = collections.deque(maxlen=16)

    socket: Any

    def open(self, wiring: Wiring, context: zmq.Context[Any]) -> None:
        if self.socket is None:
            self.socket = wire.bind_router(context, wire.endpoint(wiring.run_dir, f"agent-{self.name}"))

    def carry(self) -> None:
        """The controller asks once a second until it has an answer, so a question that nobody takes is let go."""
        while self.answers:
            self.socket.send_multipart(self.answers.popleft(), flags=zmq.DONTWAIT)
        while self.socket.poll(0):
            sender, data = self.socket.recv_multipart()
            if self.waiting is not None and self.waiting.reply(Reply({"to": sender.hex()}, [data])):
                self.waiting = None


def node_of(request: Request) -> str:
    """The node that speaks: its station is `<node>-agent`, and its key proves the node. Raises WireError."""
    node, dash, rest = request.sender.station.rpartition("-")
    if not node or not dash or rest != "agent" or not all(part.isalnum() for part in node.split("_")):
        raise WireError(f"expected a station NODE-agent of letters and digits, got {request.sender.station!r:.80}")
    if node == "local" or node.startswith("node"):
        raise WireError(f"node {node!r}: this name belongs to the run itself; choose another")
    return node


if __name__ == "__main__":
    main()
