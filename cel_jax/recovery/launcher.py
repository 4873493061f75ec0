"""The launcher: root of a run's process tree. It holds no state: what is wanted and what happened is in run.db.

    launcher -> controller
             -> node agent -> workers

It restarts a controller or agent that dies or hangs. Ctrl-C stops the run in order; a second Ctrl-C kills it.
"""

from __future__ import annotations

import dataclasses
import signal
import sqlite3
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cel_jax.recovery import process, rundb, rundb_fleet, settings, wire
from cel_jax.recovery.agent import journal_path
from cel_jax.recovery.journal import read_journal
from cel_jax.recovery.placement import Starter, open_starter
from cel_jax.recovery.registry_journal import replay
from cel_jax.recovery.stations import Station
from cel_jax.recovery.status import Status
from cel_jax.recovery.supervised import Supervised

TICK_S = 0.1
STATUS_S = 1.0
AGENT_EXIT_S = 15.0
STOP_MARGIN_S = 15.0

OnTick = Callable[[Status], bool]


class RunFailed(RuntimeError):
    """The run cannot go on; the message ends with the last words of what died."""


def run(
    run_dir: Path, stations: Sequence[Station], on_tick: OnTick, fleet: settings.FleetSettings | None = None
) -> int:
    """Runs the stations until `on_tick(status)`, called about once a second, returns True, or Ctrl-C.

    Returns 0, or 1 if the run failed; then the last thing on stderr are the last words of the worker that failed.
    Raises RobotBusy if this run is going on already, ValueError for stations that contradict each other.
    """
    fleet = fleet or settings.FleetSettings()
    lock = process.lock_file(wire.control_dir(run_dir) / "launcher.lock")
    db = rundb.open_db(run_dir)
    starter = open_starter(fleet.recovery.placement)
    try:
        settings.save(run_dir, fleet)
        rundb_fleet.begin_run(db, stations)
        nodes = sorted({station.placement.node for station in stations})
        return _Run(run_dir, db, on_tick, fleet, nodes, starter).run()
    finally:
        starter.close()
        db.close()
        process.close(lock)


@dataclasses.dataclass
class _Run:
    run_dir: Path
    db: sqlite3.Connection
    on_tick: OnTick
    fleet: settings.FleetSettings
    nodes: list[str]
    starter: Starter
    interrupts: int = 0
    failure: str = ""
    error: Exception | None = None

    def run(self) -> int:
        before = self._catch_signals()
        children = self._start()
        try:
            self._supervise(children)
        except RunFailed as error:
            self.failure = str(error)
        finally:
            self._end(children)
            _restore(before)
        if self.error is not None:
            raise self.error
        failure = self.failure or rundb.get_value(self.db, "failure")
        if failure:
            print(f"The run failed: {failure}", file=sys.stderr, flush=True)
        return 1 if failure or self.interrupts > 1 else 0

    def _start(self) -> list[Supervised]:
        base = [sys.executable, "-m"]
        where = ["--run_dir", str(self.run_dir)]
        agents = [
            Supervised(
                self.run_dir,
                f"agent-{node}",
                [*base, "cel_jax.recovery.agent", *where, "--node", node],
                node,
                self.starter,
            )
            for node in self.nodes
        ]
        return [*agents, Supervised(self.run_dir, "controller", [*base, "cel_jax.recovery.controller", *where])]

    def _supervise(self, children: list[Supervised]) -> None:
        """Until the controller has written that the run ended."""
        next_status_s, stop_by_s = 0.0, None
        while (phase := rundb.get_value(self.db, "phase")) != rundb_fleet.ENDED and self.interrupts < 2:
            now_s = time.monotonic()
            for child in children:
                child.step(now_s, self.fleet.hang_timeout_s)
                if child.failure:
                    raise RunFailed(child.failure)
            if phase == rundb_fleet.STOPPING:
                stop_by_s = stop_by_s or now_s + self.fleet.stop_deadline_s + STOP_MARGIN_S
                if now_s > stop_by_s:
                    raise RunFailed(f"the fleet did not stop within {self.fleet.stop_deadline_s + STOP_MARGIN_S:g} s")
            if self.interrupts:
                rundb_fleet.stop_run(self.db, "interrupted")
            if now_s >= next_status_s:
                next_status_s = now_s + STATUS_S
                self._tick()
            time.sleep(TICK_S)

    def _tick(self) -> None:
        """An error of the caller stops the fleet in order, then it is raised."""
        if self.error is not None:
            return
        try:
            if self.on_tick(rundb_fleet.read_status(self.db)):
                rundb_fleet.stop_run(self.db, "done")
        except Exception as error:
            self.error = error
            rundb_fleet.stop_run(self.db, f"error of the launcher: {error!r}")

    def _end(self, children: list[Supervised]) -> None:
        """Nothing may be left: agents end their workers, what remains is fenced by its recorded identity."""
        kill = self.interrupts > 1
        for child in children:
            child.end(0.0 if kill else AGENT_EXIT_S)
        for node in self.nodes:
            registry = replay(read_journal(journal_path(self.run_dir, node)))
            for worker in registry.occupant.values():
                record = registry.records[worker]
                process.fence(record.pid, record.start_ticks, worker)
        with rundb.transaction(self.db):
            rundb.set_value(self.db, "phase", rundb_fleet.ENDED)

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}

    def _interrupt(self, number: int, frame: types.FrameType | None) -> None:
        self.interrupts += 1
        text = "stopping; again to kill" if self.interrupts == 1 else "killing"
        print(f"{signal.Signals(number).name}: {text}", file=sys.stderr, flush=True)


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
