"""The controller: a process that carries what is wanted (run.db) to the agents and writes what happened to run.db.

It decides nothing that a robot waits for: agents restart workers by themselves. So it may die at any time; its
successor reads run.db and goes on.

    python -m cel_jax.recovery.controller --run_dir RUN
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import zmq

from cel_jax.bus.identity import Identity
from cel_jax.recovery import process, rundb, rundb_fleet, settings, wire
from cel_jax.recovery.agent_link import AgentLink
from cel_jax.recovery.pulse import Pulse
from cel_jax.recovery.retire_hook import RetireHook, load_hook, print_error
from cel_jax.recovery.stations import Desired, Role, Station
from cel_jax.recovery.stop_order import next_role, wanted_now

TICK_S = 0.1
SILENT_S = 15.0


class Controller:
    """One turn: read what is wanted, ask every agent, write down its answer, advance the stop if one goes on."""

    def __init__(self, run_dir: Path) -> None:
        control = wire.control_dir(run_dir)
        self._run_dir = run_dir
        self._lock = process.lock_file(control / "controller.lock")
        self._settings = settings.load(run_dir)
        self._db = rundb.open_db(run_dir)
        self._context = zmq.Context()
        self._links: dict[str, AgentLink] = {}
        self._pulse = Pulse(control / "controller.pulse")
        self._states: dict[str, str] = {}
        self._heard_s: dict[str, float] = {}
        self._strange: set[str] = set()
        hook = self._settings.on_retire
        self._hook = RetireHook(load_hook(hook), print_error) if hook else None
        self._ended = False

    def run(self) -> None:
        """Until the run has ended or SIGTERM."""
        signal.signal(signal.SIGTERM, lambda number, frame: self.end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while not self._ended:
                self.tick()
        finally:
            if self._hook is not None:
                self._hook.close()
            self._context.destroy(linger=0)
            self._db.close()

    def end(self) -> None:
        self._ended = True

    def tick(self) -> None:
        started_s = time.monotonic()
        entries = rundb_fleet.stations(self._db)
        desired = self._desired(entries)
        calls = rundb_fleet.open_calls(self._db)
        for node in sorted({station.placement.node for station, _ in entries}):
            self._sync(node, [station for station, _ in entries if station.placement.node == node], desired, calls)
        self._advance_stop(entries)
        self._pulse.beat()
        time.sleep(max(0.0, TICK_S - (time.monotonic() - started_s)))

    def _sync(
        self, node: str, stations: list[Station], desired: dict[str, tuple[str, float]], calls: list[dict[str, Any]]
    ) -> None:
        if node not in self._links:
            self._links[node] = AgentLink(self._context, self._run_dir, node)
        link = self._links[node]
        mine = {station.name: desired[station.name] for station in stations}
        link.ask(rundb_fleet.applied_seq(self._db, node), stations, mine, calls)
        answer = link.answer(TICK_S / 2)
        if answer is not None:
            self._take(node, answer)

    def _take(self, node: str, answer: dict[str, Any]) -> None:
        self._heard_s[node] = time.monotonic()
        if not self._is_of_this_run(node, answer["last_seq"]):
            return
        rundb_fleet.apply_events(self._db, node, answer["events"])
        changed = [each for each in answer["stations"] if self._states.get(each["station"]) != _signature(each)]
        if changed:
            rundb_fleet.save_status(self._db, changed)
            self._states.update({each["station"]: _signature(each) for each in changed})
        for event in answer["events"]:
            if event["kind"] == "retired" and self._hook is not None:
                self._hook.tell(Identity(event["station"], event["worker"], event["role"]))

    def _is_of_this_run(self, node: str, last_seq: int) -> bool:
        """A node of this machine must have its journal; a joined one that lost its own is left out, and said so."""
        applied = rundb_fleet.applied_seq(self._db, node)
        if last_seq >= applied:
            return True
        text = f"node {node}: its journal ends at event {last_seq}, run.db holds {applied}; they are of different runs"
        if node == "local":
            raise RuntimeError(text)
        if node not in self._strange:
            print(f"{text}; join again under another node name", file=sys.stderr, flush=True)
            self._strange.add(node)
        return False

    # -- the end of a run ----------------------------------------------------------------------------------------

    def _desired(self, entries: list[tuple[Station, Desired]]) -> dict[str, tuple[str, float]]:
        """What each station is to do now; while the run stops, roles go offline in their order."""
        stopping = rundb.get_value(self._db, "phase") == rundb_fleet.STOPPING
        still = self._busy(entries) if stopping else set()
        return {
            station.name: (
                (wanted_now(station.role, still) if stopping else desired).value, self._settings.grace_s(station.role)
            )
            for station, desired in entries
        }  # fmt: skip

    def _busy(self, entries: list[tuple[Station, Desired]]) -> set[Role]:
        """Roles of which a worker still runs, by the agents' last word. A node that is away holds up no end: what runs
        there stops by itself, or is ended by the launcher."""
        quiet = ("offline", "finished", "failed", "")
        alive = {node for node, heard_s in self._heard_s.items() if time.monotonic() - heard_s < SILENT_S}
        return {
            station.role
            for station, _ in entries
            if self._state(station.name) not in quiet and (station.placement.node in alive or not self._heard_s)
        }

    def _state(self, name: str) -> str:
        return self._states.get(name, "unknown\n").partition("\n")[0]

    def _advance_stop(self, entries: list[tuple[Station, Desired]]) -> None:
        phase = rundb.get_value(self._db, "phase")
        if phase == rundb_fleet.RUNNING and rundb.get_value(self._db, "failure"):
            rundb_fleet.stop_run(self._db, "failure")
        if phase == rundb_fleet.STOPPING and next_role(self._busy(entries)) is None:
            rundb.set_value(self._db, "phase", rundb_fleet.ENDED)
        if phase == rundb_fleet.ENDED:
            self._ended = True


def _signature(status: dict[str, Any]) -> str:
    """What must change before run.db is written again; the state comes first."""
    keys = ("state", "worker", "failures", "cause", "note")
    return "\n".join(str(status[key]) for key in keys)


def main() -> None:
    parser = argparse.ArgumentParser(description="The controller of a run; started by the launcher.")
    parser.add_argument("--run_dir", type=Path, required=True)
    Controller(parser.parse_args().run_dir).run()


if __name__ == "__main__":
    main()
