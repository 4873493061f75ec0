"""The stations of one agent and what happens to them: launch, watch, fence, relaunch.

A suspected worker is first retired in the registry, then killed, and only when nothing of it runs any more is its
station free for the next one (paper, "Tiered recovery" and "Re-admission").
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

from cel_jax.bus.identity import Identity
from cel_jax.recovery import membership, process, settings, wire
from cel_jax.recovery.beat import WorkerSettings
from cel_jax.recovery.journal import Journal
from cel_jax.recovery.liveness import Liveness
from cel_jax.recovery.membership import Artifact, Registry, Response
from cel_jax.recovery.registry_journal import replay
from cel_jax.recovery.restart_policy import Failures, after_failure, exhausted, tier_of
from cel_jax.recovery.slots import Phase, Slot
from cel_jax.recovery.stations import (
    Desired,
    Role,
    Station,
    WorkerRecord,
    WorkerState,
    new_identity,
    resolve_argv,
    station_to_dict,
)

SAFE_STOP_DEADLINE_S = 10.0
ROBOT_RETRY_S = 0.5
STARTS_AT_ONCE = 4 + 2 * (os.cpu_count() or 1)  # more interpreters at once only make all of them late


class SlotKeeper:
    """All stations of a node. `step` moves each by what it finds; nothing here blocks longer than a fork."""

    def __init__(
        self, run_dir: Path, node: str, fleet: settings.FleetSettings, journal: Journal, liveness: Liveness
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self.registry: Registry = replay(journal.events)
        self._run_dir, self._node, self._fleet = run_dir, node, fleet
        self._journal, self._liveness = journal, liveness
        self._version = journal.last_seq

    # -- what is wanted ------------------------------------------------------------------------------------------

    def set_stations(self, stations: list[Station]) -> None:
        """Adds new stations, takes new definitions for the next launch, lets stations that are gone go offline."""
        for station in stations:
            self.slots.setdefault(station.name, Slot(station)).station = station
        names = {station.name for station in stations}
        for name in set(self.slots) - names:
            self.slots[name].desired = Desired.OFFLINE

    def set_desired(self, wanted: dict[str, tuple[Desired, float]]) -> bool:
        """What to run. A station that comes back from OFFLINE gets a fresh start. True if anything changed."""
        changed = False
        for name, (desired, grace_s) in wanted.items():
            slot = self.slots.get(name)
            if slot is None or (slot.desired, slot.grace_s) == (desired, grace_s):
                continue
            if slot.desired is Desired.OFFLINE and slot.phase in (Phase.FINISHED, Phase.FAILED):
                slot.phase = Phase.FREE
            if slot.desired is Desired.OFFLINE:
                slot.failures = Failures()
            slot.desired, slot.grace_s, changed = desired, grace_s, True
        return changed

    def want_all_offline(self, grace_s: float) -> None:
        for slot in self.slots.values():
            slot.desired, slot.grace_s = Desired.OFFLINE, min(slot.grace_s, grace_s)

    def all_quiet(self) -> bool:
        """True when nothing runs."""
        return all(slot.phase in (Phase.FREE, Phase.FINISHED, Phase.FAILED) for slot in self.slots.values())

    def status(self, now_s: float) -> list[dict[str, Any]]:
        return [slot.status(now_s) for slot in self.slots.values()]

    def identity_of(self, worker: str) -> Identity | None:
        """The identity of a worker that is at its station now, else None."""
        record = self.registry.records.get(worker)
        if record is None or self._check(record.identity) is not Response.ACCEPT:
            return None
        return record.identity

    # -- one turn ------------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> None:
        beats = self._liveness.beats()
        for slot in self.slots.values():
            self._take_beat(slot, beats)
            if slot.phase is Phase.LIVE:
                self._step_live(slot, beats, now_s)
            elif slot.phase is Phase.STOPPING:
                self._step_stopping(slot, now_s)
            elif slot.phase is Phase.DYING:
                self._step_dying(slot, now_s)
            elif slot.phase is Phase.SAFE_STOP:
                self._step_safe_stop(slot, now_s)
            elif slot.phase is Phase.FREE and slot.desired is not Desired.OFFLINE:
                self._launch_when_due(slot, now_s)

    def _take_beat(self, slot: Slot, beats: dict[str, Any]) -> None:
        beat = beats.get(slot.worker) if slot.occupied else None
        if beat is None or slot.record is None:
            return
        slot.beaten, slot.note = True, beat.note
        if beat.state == WorkerState.READY.value and not slot.ready:
            slot.ready = True
            slot.failures = dataclasses.replace(slot.failures, at_start=0)
            self.registry = membership.set_state(self.registry, slot.record.identity, WorkerState.READY)
            self._note("ready", slot.record.identity)

    def _step_live(self, slot: Slot, beats: dict[str, Any], now_s: float) -> None:
        assert slot.process is not None and slot.record is not None
        returncode = slot.process.poll()
        if returncode is not None:
            self._ended_by_itself(slot, returncode, now_s)
        elif slot.desired is Desired.OFFLINE:
            self._ask_to_stop(slot, now_s)
        else:
            silence = self._silence(slot, beats, now_s)
            if silence:
                self._suspect(slot, silence, now_s)

    def _silence(self, slot: Slot, beats: dict[str, Any], now_s: float) -> str:
        """Why a worker must be taken for dead; '' while it lives. A cause, not a question: it is terminated."""
        timeout_s = tier_of(slot.station.role, self._fleet.recovery).timeout_s
        beat = beats.get(slot.worker)
        silent_s = now_s - (slot.launched_s if beat is None else beat.at_s)
        if silent_s > timeout_s:
            return f"no heartbeat for {silent_s:.1f} s (limit {timeout_s:g} s)"
        stall_s = slot.station.stall_timeout_s
        if beat is not None and stall_s and beat.stalled_s > stall_s:
            return f"main loop made no progress for {beat.stalled_s:.1f} s (limit {stall_s:g} s)"
        return ""

    # -- ends ----------------------------------------------------------------------------------------------------

    def suspect(self, identity: Identity, cause: str, now_s: float) -> Response:
        """A report about a worker: it is terminated if it still is at its station; a late report is ignored."""
        response = self._check(identity)
        slot = self.slots.get(identity.station)
        if response is Response.ACCEPT and slot is not None and slot.phase is Phase.LIVE:
            self._suspect(slot, cause, now_s)
        return response

    def _suspect(self, slot: Slot, cause: str, now_s: float) -> None:
        """Retire, then kill: from here on nothing of this worker is accepted."""
        words = process.last_words(slot.log) if "heartbeat" in cause else ""
        self._failed(slot, "suspected", "\n".join(filter(None, (cause, words))), None, now_s)

    def _ended_by_itself(self, slot: Slot, returncode: int, now_s: float) -> None:
        """An exit nobody asked for. Exit code 0 is a finished task, except at a robot, which never finishes."""
        if returncode == 0 and slot.station.role is not Role.ENVIRONMENT:
            self._retire(slot, "finished", "exit code 0", 0, now_s)
            return
        words = process.last_words(slot.log)
        cause = "\n".join(filter(None, (process.describe_exit(returncode), words)))
        self._failed(slot, "exited", cause, returncode, now_s)

    def _failed(self, slot: Slot, how: str, cause: str, returncode: int | None, now_s: float) -> None:
        """Counts a failure, retires the worker, and with it the rest of its recovery unit."""
        others = membership.unit_members(self.registry, slot.station.name)
        slot.failures = after_failure(
            slot.failures, self._fleet.recovery, now_s, now_s - slot.launched_s, slot.ready
        )  # fmt: skip
        slot.cause = cause
        self._retire(slot, how, cause, returncode, now_s)
        for identity in others:
            other = self.slots.get(identity.station)
            if other is not None and other.phase is Phase.LIVE:
                other.failures = dataclasses.replace(other.failures, retry_at_s=slot.failures.retry_at_s)
                self._retire(other, "unit", f"restarts with {slot.station.name}", None, now_s)

    def _retire(self, slot: Slot, how: str, cause: str, returncode: int | None, now_s: float) -> None:
        assert slot.record is not None
        identity = slot.record.identity
        self.registry = membership.retire(self.registry, identity, cause, time.time())
        self._note("retired", identity, how=how, cause=cause, returncode=returncode)
        self._liveness.forget(identity.worker)
        slot.enter(Phase.DYING, now_s)
        slot.finished = how == "finished"
        self._kill(slot)

    def _kill(self, slot: Slot) -> int:
        assert slot.record is not None
        return process.kill_all(slot.record.pid, slot.record.start_ticks, slot.worker)

    def _step_dying(self, slot: Slot, now_s: float) -> None:
        """Waits until nothing of the worker runs; then the robot is stopped, then the station is free."""
        assert slot.process is not None
        if self._kill(slot) or slot.process.poll() is None:
            return
        if slot.station.placement.safe_stop:
            log = self._run_dir / "logs" / slot.station.name / "safe_stop.log"
            slot.safe_stop = process.start(slot.station.placement.safe_stop, settings.child_env(), log)
            slot.enter(Phase.SAFE_STOP, now_s)
        else:
            self._free(slot, now_s)

    def _step_safe_stop(self, slot: Slot, now_s: float) -> None:
        assert slot.safe_stop is not None
        late = now_s - slot.since_s > SAFE_STOP_DEADLINE_S
        if late:
            slot.safe_stop.kill()
        returncode = slot.safe_stop.poll()
        if returncode is None:
            return
        if returncode != 0:
            slot.cause = f"the robot's safe stop failed ({process.describe_exit(returncode)}); check the robot"
            self._journal.append("safe_stop_failed", station=slot.station.name, worker=slot.worker, cause=slot.cause)
        slot.safe_stop = None
        self._free(slot, now_s)

    def _free(self, slot: Slot, now_s: float) -> None:
        why = exhausted(slot.failures, tier_of(slot.station.role, self._fleet.recovery))
        if slot.finished:
            slot.enter(Phase.FINISHED, now_s)
        elif why and slot.desired is not Desired.OFFLINE:
            slot.enter(Phase.FAILED, now_s)
            self._journal.append("fatal", station=slot.station.name, worker=slot.worker, why=why, cause=slot.cause)
        else:
            slot.enter(Phase.FREE, now_s)

    # -- orderly stop --------------------------------------------------------------------------------------------

    def _ask_to_stop(self, slot: Slot, now_s: float) -> None:
        """Through its command channel if it listens already, else by SIGTERM."""
        assert slot.record is not None
        if slot.beaten:
            self._liveness.send(slot.worker, {"t": "stop"})
        else:
            process.signal_process(slot.record.pid, signal.SIGTERM)
        slot.enter(Phase.STOPPING, now_s)

    def _step_stopping(self, slot: Slot, now_s: float) -> None:
        assert slot.process is not None
        returncode = slot.process.poll()
        if returncode is not None:
            cause = "" if returncode == 0 else "\n" + process.last_words(slot.log)
            self._retire(slot, "stopped", process.describe_exit(returncode) + cause, returncode, now_s)
        elif now_s - slot.since_s > slot.grace_s:
            self._retire(slot, "killed", f"did not stop within {slot.grace_s:g} s", None, now_s)

    # -- launches ------------------------------------------------------------------------------------------------

    def _launch_when_due(self, slot: Slot, now_s: float) -> None:
        if now_s < slot.failures.retry_at_s or self._starting() >= STARTS_AT_ONCE:
            return
        try:
            self._launch(slot, now_s)
        except process.RobotBusy as error:
            slot.cause = f"robot {slot.station.placement.robot} is held: {error}"
            slot.failures = dataclasses.replace(slot.failures, retry_at_s=now_s + ROBOT_RETRY_S)
        except OSError as error:
            slot.failures = after_failure(slot.failures, self._fleet.recovery, now_s, 0.0, False)
            slot.cause = f"could not be started: {error}"
            self._free(slot, now_s)

    def _starting(self) -> int:
        """Workers that were launched and have not beaten yet: each still reads its imports."""
        return sum(slot.phase is Phase.LIVE and not slot.beaten for slot in self.slots.values())

    def _launch(self, slot: Slot, now_s: float) -> None:
        station, name = slot.station, slot.station.name
        incarnation = self.registry.launches.get(name, 0) + 1
        identity = new_identity(station, incarnation)
        log = self._run_dir / "logs" / name / f"{identity.worker}.log"
        lock = self._lock_robot(station)
        try:
            child = process.start(
                resolve_argv(station.placement), self._env(station, identity, incarnation), log,
                [] if lock is None else [lock],
            )  # fmt: skip
        finally:
            if lock is not None:
                process.close(lock)  # the worker's own copy keeps the robot locked as long as it lives
        ticks = process.start_ticks(child.pid)
        record = WorkerRecord(identity, child.pid, WorkerState.STARTING, time.time(), incarnation, ticks)
        first = name not in self.registry.stations
        self.registry = (
            membership.admit(self.registry, station, record) if first else membership.readmit(self.registry, record)
        )
        slot.launched(record, child, log, now_s)
        self._note(
            "launched", identity, pid=child.pid, start_ticks=ticks, incarnation=incarnation,
            place=station_to_dict(station), log=str(log.relative_to(self._run_dir)),
        )  # fmt: skip

    def _lock_robot(self, station: Station) -> int | None:
        if station.placement.robot is None:
            return None
        own = wire.control_dir(self._run_dir) / f"robot-{station.placement.robot}.lock"
        return process.lock_file(Path(station.placement.robot_lock) if station.placement.robot_lock else own)

    def _env(self, station: Station, identity: Identity, incarnation: int) -> dict[str, str]:
        worker = WorkerSettings(
            self._run_dir, identity, wire.endpoint(self._run_dir, f"liveness-{self._node}"),
            self._fleet.recovery.heartbeat_s, self._fleet.agent_timeout_s, station.placement.robot, incarnation,
            self.registry.epochs.get(station.connection_group, 1),
        )  # fmt: skip
        return {**settings.child_env(), **dict(station.placement.env), **worker.to_env()}

    def fence_predecessors(self) -> None:
        """Ends whatever a former agent of this node left behind, before anything is launched."""
        for worker in list(self.registry.occupant.values()):
            record = self.registry.records[worker]
            process.fence(record.pid, record.start_ticks, worker)
            self.registry = membership.retire(self.registry, record.identity, "its agent ended", time.time())
            self._note("retired", record.identity, how="agent", cause="its agent ended", returncode=None)

    # -- words to workers ----------------------------------------------------------------------------------------

    def tell(self, calls: list[dict[str, Any]]) -> None:
        """Gives every live worker what it has not been told yet: membership, pause, its part of the calls."""
        table: dict[str, Any] | None = None
        for slot in self.slots.values():
            if slot.phase is not Phase.LIVE or not slot.beaten:
                continue
            if slot.told_version != self._version:
                table = table or membership.to_table(self.registry)
                self._liveness.send(slot.worker, {"t": "membership", "version": self._version, "table": table})
                slot.told_version = self._version
            self._tell_pause(slot)
            self._tell_calls(slot, calls)

    def _tell_pause(self, slot: Slot) -> None:
        paused = slot.desired is Desired.PAUSED
        if paused != slot.told_pause:
            self._liveness.send(slot.worker, {"t": "pause", "on": paused})
            slot.told_pause = paused

    def _tell_calls(self, slot: Slot, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            if slot.station.name in call["stations"] and call["id"] not in slot.told_calls:
                self._liveness.send(
                    slot.worker, {"t": "call", "id": call["id"], "name": call["name"], "args": call["args"]}
                )  # fmt: skip
                slot.told_calls.add(call["id"])

    def _check(self, identity: Identity) -> Response:
        return membership.check(self.registry, Artifact.CONTROL_MESSAGE, identity)

    def _note(self, kind: str, identity: Identity, **fields: Any) -> None:
        """Journals a change of the membership; its number is the version that the workers see."""
        event = self._journal.append(
            kind, station=identity.station, worker=identity.worker, role=identity.role, **fields
        )  # fmt: skip
        self._version = event["seq"]
