"""The desk: takes labels, starts and stops from operators, and gives them to the stations that ask. One thread.

Labels are in run.db before they are confirmed, so that neither this process nor the page may lose one. What a station
has finished it says again with every report: a restarted desk knows everything after one round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from cel_jax.bus.deferred import Deferred
from cel_jax.bus.errors import AccessRefused, BusError, WireError
from cel_jax.bus.message import Reply, Request
from cel_jax.console import labels, tiles
from cel_jax.console.desk import (
    DESK,
    HOLD_S,
    RUNNING,
    WAITS_FOR_START,
    Orders,
    Report,
    orders_to_dict,
    report_from_dict,
)
from cel_jax.console.labels import LabelPhase, LabelRefused, LabelState, UnknownEpisode
from cel_jax.console.ledger import Ledger
from cel_jax.data.episode import Label
from cel_jax.recovery.rundb import RunDbError
from cel_jax.recovery.stations import Role

OPERATIONS = ("tiles", "label", "undo", "start", "stop", "release")
ROLES = {"report": frozenset({Role.ENVIRONMENT.value}), **dict.fromkeys(OPERATIONS, frozenset({DESK}))}
START_S = 3.0  # a start that its station did not take by then is void: nobody expects a robot to move later
FRESH_S = 3.0  # a station that was not heard for longer is away


class StationRefused(BusError):
    """An order that its station cannot follow now; the message says why."""

    kind = "station_refused"


@dataclasses.dataclass
class Seen:
    """A station as the desk knows it. told: what it was answered last. Times are monotonic."""

    worker: str = ""
    report: Report = dataclasses.field(default_factory=lambda: Report(""))
    heard_s: float = -math.inf
    asked: Deferred | None = None
    answer_by_s: float = 0.0
    told: Orders | None = None
    start: str = ""
    start_by_s: float = 0.0
    end: str = ""


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that go on evenly when the machine's clock is set: the undo window keeps its length."""
    begin_s = time.time() - time.monotonic()
    return lambda: begin_s + time.monotonic()


class Hub:
    """label_deadline_s: an episode that nobody labels within it is discarded. clock: seconds since 1970."""

    def __init__(
        self, db: sqlite3.Connection, label_deadline_s: float, clock: Callable[[], float] | None = None
    ) -> None:  # fmt: skip
        self._ledger, self._deadline_s, self._clock = Ledger(db), label_deadline_s, clock or steady_clock()
        self.stations: dict[str, Seen] = {}
        self.states: dict[str, LabelState] = {}
        self.stops = self._ledger.stops()
        self._ending: dict[str, tuple[Mapping[str, Any], Deferred]] = {}
        self._answers: dict[str, Callable[[Request, Deferred], dict[str, Any] | None]] = {
            "report": self._report,
            "tiles": self._tiles,
            "label": self._label,
            "undo": self._undo,
            "start": self._start,
            "stop": self._stop,
            "release": self._release,
        }

    def serve(self, request: Request, deferred: Deferred) -> None:
        """Answers one request, now or, for a report and an episode that has to end first, later."""
        try:
            if request.sender.role not in ROLES[request.op]:
                raise AccessRefused(f"role {request.sender.role!r} may not ask for {request.op!r}")
            answer = self._answers[request.op](request, deferred)
            if answer is not None:
                deferred.reply(Reply(answer))
        except BusError as error:
            deferred.fail(error)
        except (RunDbError, sqlite3.Error) as error:
            deferred.fail(LabelRefused(f"{request.op}: run.db: {error}"))
        self._answer_stations()

    def tick(self) -> None:
        """What time alone does."""
        now_s, tick_s = self._clock(), time.monotonic()
        for episode, state in list(self.states.items()):
            with contextlib.suppress(RunDbError, sqlite3.Error):  # another writer is at it: the next turn tries again
                self._settle(episode, labels.settle(state, now_s, self._deadline_s))
        for seen in self.stations.values():
            if seen.start and tick_s > seen.start_by_s:
                seen.start = ""
        self._ending = {episode: one for episode, one in self._ending.items() if not one[1].done}
        self._answer_stations()

    # -- stations ----------------------------------------------------------------------------------------------------

    def _report(self, request: Request, deferred: Deferred) -> None:
        name, report = request.sender.station, report_from_dict(request.header)
        if name not in self.stations and name not in self._ledger.station_names():
            raise StationRefused(f"station {name!r:.80} is not one of this run's robots")
        seen = self.stations.setdefault(name, Seen())
        if seen.worker != request.sender.worker:
            seen.worker, seen.told, seen.start = request.sender.worker, None, ""
        if seen.asked is not None:
            seen.asked.abandon()
        seen.report, seen.heard_s = report, time.monotonic()
        seen.asked, seen.answer_by_s = deferred, seen.heard_s + HOLD_S
        self._take_report(name, seen, report)

    def _take_report(self, name: str, seen: Seen, report: Report) -> None:
        listed = {one.episode for one in report.finished}
        for one in report.finished:
            if one.episode not in self.states:
                self.states[one.episode] = self._ledger.admit(one, name, self._clock())
            self._label_ended(one.episode)
        for episode in [each for each, state in self.states.items() if state.station == name and each not in listed]:
            del self.states[episode]  # it went out
        if report.started == seen.start:
            seen.start = ""
        if report.episode != seen.end:
            seen.end = ""
        if report.ending:
            for episode in listed:
                self.states[episode] = labels.close_early(self.states[episode])

    def _label_ended(self, episode: str) -> None:
        """The label that was given while the episode still ran."""
        header, deferred = self._ending.pop(episode, ({}, None))
        if deferred is None or deferred.done:  # its operator was told that it failed
            return
        try:
            deferred.reply(Reply(self._write_label(self.states[episode], header)))
        except (BusError, RunDbError) as error:
            deferred.fail(LabelRefused(str(error)))

    def _orders(self, name: str, seen: Seen) -> Orders:
        mine = [state for state in self.states.values() if state.station == name]
        given = {one.episode: (one.label, one.phase is LabelPhase.FINAL) for one in mine if one.label is not None}
        return Orders(name in self.stops, seen.start, seen.end, given)

    def _answer_stations(self) -> None:
        now_s = time.monotonic()
        for name, seen in self.stations.items():
            if seen.asked is None:
                continue
            orders = self._orders(name, seen)
            if orders != seen.told or now_s >= seen.answer_by_s:
                seen.asked.reply(Reply(orders_to_dict(orders)))
                seen.asked, seen.told = None, orders

    # -- operators ---------------------------------------------------------------------------------------------------

    def _label(self, request: Request, deferred: Deferred) -> dict[str, Any] | None:
        head = request.header
        episode = _text(head, "episode")
        labels.make_label(head.get("outcome"), head.get("author"), head.get("reason", ""), 0.0)  # refuses at once
        state = self.states.get(episode)
        if state is not None:
            return self._write_label(state, head)
        running = [seen for seen in self.stations.values() if _runs(seen, episode)]
        if not running:
            raise self._ledger.why_not(episode)
        if episode in self._ending:
            raise LabelRefused(f"episode {episode} is ending for a label that was given just now")
        running[0].end, self._ending[episode] = episode, (head, deferred)
        return None

    def _write_label(self, state: LabelState, head: Mapping[str, Any]) -> dict[str, Any]:
        label = labels.make_label(head.get("outcome"), head.get("author"), head.get("reason", ""), self._clock())
        self._settle(state.episode, labels.give(state, label))
        return {"episode": state.episode, "outcome": label.outcome.value, "undo_s": labels.UNDO_S}

    def _settle(self, episode: str, state: LabelState) -> None:
        """On disk first. A new label is written; what became final is as it was."""
        before = self.states[episode]
        if state is not before and state.phase is LabelPhase.PENDING:
            self._ledger.write(episode, _given(state))
        self.states[episode] = state

    def _undo(self, request: Request, deferred: Deferred) -> dict[str, Any]:
        episode, author = _text(request.header, "episode"), labels.check_author(request.header.get("author"))
        if episode not in self.states:
            raise self._ledger.why_not(episode)
        now_s = self._clock()
        state = labels.undo(self.states[episode], now_s)
        self._ledger.undo(episode, author, now_s)
        self.states[episode] = state
        return {"episode": episode}

    def _start(self, request: Request, deferred: Deferred) -> dict[str, Any]:
        name, author = _text(request.header, "station"), labels.check_author(request.header.get("author"))
        seen = self.stations.get(name)
        if reason := self._why_no_start(name, seen):
            raise StationRefused(f"station {name}: {reason}")
        assert seen is not None
        seen.start, seen.start_by_s = secrets.token_hex(8), time.monotonic() + START_S
        self._ledger.note("start", name, author)
        return {"station": name}

    def _why_no_start(self, name: str, seen: Seen | None) -> str:
        unlabelled = [one.episode for one in self.states.values() if _waits(one, name)]
        if seen is None:
            return "no such robot, or it has not reported yet"
        if name in self.stops:
            return "emergency stop; release it first"
        if time.monotonic() - seen.heard_s > FRESH_S:
            return "it does not report; see its cause"
        if unlabelled:
            return f"label episode {unlabelled[0]} first"
        if seen.start or seen.report.phase != WAITS_FOR_START:
            return f"it is {'starting' if seen.start else seen.report.phase} already"
        return ""

    def _stop(self, request: Request, deferred: Deferred) -> dict[str, Any]:
        """The order goes out before it is on record."""
        names, author = self._named(request), labels.check_author(request.header.get("author"))
        now_s = self._clock()
        self.stops.update({name: (author, now_s) for name in names})
        for name in names:
            self.stations.setdefault(name, Seen()).start = ""
        self._answer_stations()
        self._ledger.stop(names, author, now_s)
        return {"stations": names}

    def _release(self, request: Request, deferred: Deferred) -> dict[str, Any]:
        names, author = self._named(request), labels.check_author(request.header.get("author"))
        self._ledger.release(names, author)
        for name in names:
            self.stops.pop(name, None)
        return {"stations": names}

    def _named(self, request: Request) -> list[str]:
        """The stations of an order; none given: all."""
        asked, known = request.header.get("stations"), self._ledger.station_names()
        if not isinstance(asked, list) or not all(isinstance(one, str) for one in asked):
            raise WireError(f"stations: expected a list of names, got {asked!r:.80}")
        unknown = sorted(set(asked) - set(known))
        if unknown:
            raise StationRefused(f"no robot {', '.join(unknown)[:80]}; there are {', '.join(known)[:400]}")
        return asked or known

    def _tiles(self, request: Request, deferred: Deferred) -> dict[str, Any]:
        now_s, status = self._clock(), self._ledger.status()
        made = [
            tiles.tile(one, self.stations.get(one.name), self.stops.get(one.name), FRESH_S)
            for one in status.stations
            if one.role == Role.ENVIRONMENT.value
        ]
        finished = [tiles.finished(one, now_s, self._deadline_s) for one in self.states.values()]
        return {"labels": "operator", "phase": status.phase, "stations": made, "episodes": finished}


def _runs(seen: Seen, episode: str) -> bool:
    return seen.report.phase == RUNNING and seen.report.episode == episode


def _waits(state: LabelState, station: str) -> bool:
    return state.station == station and state.phase is LabelPhase.WAITING


def _given(state: LabelState) -> Label:
    assert state.label is not None
    return state.label


def _text(header: Mapping[str, Any], name: str) -> str:
    value = header.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise UnknownEpisode(f"{name}: expected a name, got {value!r:.80}")
    return value
