"""The node agent: a process that owns the workers of one node. It launches, watches, kills and relaunches them, with
or without a controller; when it dies, so do they, and its successor makes sure of that before it launches any.

    python -m cel_jax.recovery.agent --run_dir RUN --node local
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path
from typing import Any

import zmq

from cel_jax.bus.identity import Identity
from cel_jax.recovery import membership, process, settings, wire
from cel_jax.recovery.agent_workers import SlotKeeper
from cel_jax.recovery.journal import Journal
from cel_jax.recovery.liveness import Liveness
from cel_jax.recovery.pulse import Pulse
from cel_jax.recovery.stations import Desired, Station, station_from_dict, station_to_dict

POLL_MS = 20
EXIT_GRACE_S = 2.0
MAX_REPORTS_HZ = 20  # per worker


class Agent:
    """The agent's main loop. Not thread safe; workers are spawned from this thread, with whose end they end."""

    def __init__(self, run_dir: Path, node: str) -> None:
        self._control = wire.control_dir(run_dir)
        self._node = node
        self._lock = process.lock_file(self._control / f"agent-{node}.lock")
        self._journal = Journal(journal_path(run_dir, node))
        self._context = zmq.Context()
        self._liveness = Liveness(wire.endpoint(run_dir, f"liveness-{node}"))
        self._router = wire.bind_router(self._context, wire.endpoint(run_dir, f"agent-{node}"))
        self._pulse = Pulse(self._control / f"agent-{node}.pulse")
        self._keeper = SlotKeeper(run_dir, node, settings.load(run_dir), self._journal, self._liveness)
        self._digest = ""
        self._calls: list[dict[str, Any]] = []
        self._ending = False
        self._reports: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Until SIGTERM: then every worker is stopped, at the latest after EXIT_GRACE_S."""
        signal.signal(signal.SIGTERM, lambda number, frame: self.end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._keeper.fence_predecessors()
            self._recall()
            while not (self._ending and self._keeper.all_quiet()):
                self.tick()
        finally:
            self._liveness.close()
            self._context.destroy(linger=0)
            self._journal.close()

    def end(self) -> None:
        self._ending = True

    def tick(self) -> None:
        """One turn: the controller's word, the workers' mail, then every station's next step."""
        if self._router.poll(POLL_MS):
            self._serve()
        if self._ending:
            self._keeper.want_all_offline(EXIT_GRACE_S)
        for worker, message in self._liveness.mail():
            self._take_mail(worker, message)
        self._keeper.step(time.monotonic())
        self._keeper.tell(self._calls)
        self._pulse.beat()

    def _serve(self) -> None:
        sender, data = self._router.recv_multipart()
        message = wire.unpack(data)
        if message.get("t") != "sync":
            raise wire.WireError(f"agent {self._node}: unknown message {message.get('t')!r} from a controller")
        if "stations" in message:
            self._take_stations(message["digest"], [station_from_dict(values) for values in message["stations"]])
        if message["digest"] == self._digest:
            self._take_desired(message["desired"])
            self._calls = message["calls"]
        reply = {
            "t": "status", "id": message["id"], "digest": self._digest, "last_seq": self._journal.last_seq,
            "events": self._journal.since(message["since"]), "stations": self._keeper.status(time.monotonic()),
        }  # fmt: skip
        self._router.send_multipart([sender, wire.pack(reply)], flags=zmq.DONTWAIT)

    def _take_stations(self, digest: str, stations: list[Station]) -> None:
        self._keeper.set_stations(stations)
        self._digest = digest
        self._remember()

    def _take_desired(self, desired: dict[str, list[Any]]) -> None:
        wanted = {name: (Desired(value), float(grace_s)) for name, (value, grace_s) in desired.items()}
        if self._keeper.set_desired(wanted):
            self._remember()

    def _remember(self) -> None:
        """Keeps what is wanted on disk, so that a restarted agent goes on without a controller."""
        slots = self._keeper.slots.values()
        values = {
            "digest": self._digest,
            "stations": [station_to_dict(slot.station) for slot in slots],
            "desired": {slot.station.name: [slot.desired.value, slot.grace_s] for slot in slots},
        }
        settings.write_atomically(self._memory_path(), json.dumps(values))

    def _recall(self) -> None:
        if not self._memory_path().exists():
            return
        values = json.loads(self._memory_path().read_text())
        self._take_stations(values["digest"], [station_from_dict(each) for each in values["stations"]])
        self._take_desired(values["desired"])

    def _memory_path(self) -> Path:
        return self._control / f"stations-{self._node}.json"

    def _take_mail(self, worker: str, message: dict[str, Any]) -> None:
        """Mail of a worker that is no longer at its station is ignored (Table 2, control message)."""
        sender = self._keeper.identity_of(worker)
        if sender is None:
            return
        if message["t"] == "result":
            self._journal.append(
                "result", station=sender.station, worker=worker, call=message["call"], ok=message["ok"],
                value=message["value"],
            )  # fmt: skip
        elif self._within_limit(worker):
            self._take_report(sender, message)

    def _within_limit(self, worker: str) -> bool:
        """A worker that reports without end must not keep the agent from the others."""
        second = int(time.monotonic())
        seen, count = self._reports.get(worker, (second, 0))
        count = count + 1 if seen == second else 1
        self._reports[worker] = (second, count)
        return count <= MAX_REPORTS_HZ

    def _take_report(self, sender: Identity, message: dict[str, Any]) -> None:
        suspect = Identity(*message["suspect"]) if "suspect" in message else None
        response = membership.Response.ACCEPT
        if suspect is not None:
            cause = f"reported by {sender.station}: {message['kind']}: {message['detail']}"
            response = self._keeper.suspect(suspect, cause, time.monotonic())
        self._journal.append(
            "report", station=sender.station, worker=sender.worker, report=message["kind"], detail=message["detail"],
            suspect=suspect.worker if suspect else "", response=response.value,
        )  # fmt: skip


def journal_path(run_dir: Path, node: str) -> Path:
    return wire.control_dir(run_dir) / f"agent-{node}.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description="The node agent of a run; started by the launcher.")
    parser.add_argument("--run_dir", type=Path, required=True)
    parser.add_argument("--node", required=True)
    args = parser.parse_args()
    Agent(args.run_dir, args.node).run()


if __name__ == "__main__":
    main()
