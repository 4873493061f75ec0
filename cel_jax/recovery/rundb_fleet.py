"""The fleet's part of run.db: stations and what is wanted of them, workers, incidents, calls, status.

Any process may ask (`set_desired`, `request_call`, `add_station`); the controller reads and carries out.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cel_jax.recovery.rundb import RunDbError, get_value, rows, set_value, transaction
from cel_jax.recovery.stations import Desired, Station, check_stations, station_from_dict, station_to_dict
from cel_jax.recovery.status import StationStatus, Status

# Phases of a run, kept under the key `phase`.
RUNNING, STOPPING, ENDED = "running", "stopping", "ended"


def begin_run(db: sqlite3.Connection, stations: Sequence[Station]) -> None:
    """Enters the stations of this launch; others of earlier launches go offline. Clears a former failure."""
    check_stations(list(stations))
    with transaction(db):
        db.execute(
            "UPDATE stations SET desired = ?, state = 'offline', worker = '', pid = 0, failures = 0, cause = '', "
            "note = '', retry_at_s = 0",
            (Desired.OFFLINE.value,),
        )
        for position, station in enumerate(stations):
            _put_station(db, station, Desired.RUNNING, position)
        db.execute("DELETE FROM run WHERE key IN ('failure', 'stop_reason')")
        set_value(db, "phase", RUNNING)


def stop_run(db: sqlite3.Connection, reason: str) -> None:
    """Asks for the orderly end of the run; again or after the end it changes nothing."""
    with transaction(db):
        if get_value(db, "phase") == RUNNING:
            set_value(db, "phase", STOPPING)
            set_value(db, "stop_reason", reason)


def add_station(db: sqlite3.Connection, station: Station, desired: Desired = Desired.RUNNING) -> None:
    """A robot that joins while the run goes on. Raises ValueError if its robot is at another station."""
    with transaction(db):
        others = [each for each in _definitions(db) if each.name != station.name]
        check_stations([*others, station])
        position = db.execute("SELECT COALESCE(MAX(position), 0) + 1 AS p FROM stations").fetchone()["p"]
        _put_station(db, station, desired, position)


def _put_station(db: sqlite3.Connection, station: Station, desired: Desired, position: int) -> None:
    definition = json.dumps(station_to_dict(station), sort_keys=True)
    db.execute(
        "INSERT INTO stations (name, role, node, definition, desired, position) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET role = excluded.role, node = excluded.node, "
        "definition = excluded.definition, desired = excluded.desired, position = excluded.position",
        (station.name, station.role.value, station.placement.node, definition, desired.value, position),
    )


def set_desired(db: sqlite3.Connection, station: str, desired: Desired) -> None:
    """Pause, take offline for maintenance, or bring back. Raises RunDbError for an unknown station."""
    if db.execute("UPDATE stations SET desired = ? WHERE name = ?", (desired.value, station)).rowcount != 1:
        raise RunDbError(f"station {station}: unknown to run.db; add it first")


def stations(db: sqlite3.Connection) -> list[tuple[Station, Desired]]:
    """All stations, in order, with what is wanted of them."""
    found = db.execute("SELECT definition, desired FROM stations ORDER BY position, name")
    return [(station_from_dict(json.loads(row["definition"])), Desired(row["desired"])) for row in found]


def _definitions(db: sqlite3.Connection) -> list[Station]:
    wanted = db.execute("SELECT definition FROM stations WHERE desired != ?", (Desired.OFFLINE.value,))
    return [station_from_dict(json.loads(row["definition"])) for row in wanted]


# -- calls -------------------------------------------------------------------------------------------------------


def request_call(
    db: sqlite3.Connection, name: str, stations: Sequence[str], args: Mapping[str, Any] | None = None,
    call_id: str | None = None, now_s: float | None = None,
) -> str:  # fmt: skip
    """Asks the workers of these stations for something; returns the call's id. The same id again is the same call.

    Raises RunDbError if the id was used for a different call.
    """
    call_id = call_id or f"{name}-{secrets.token_hex(6)}"
    content = (name, json.dumps(dict(args or {}), sort_keys=True), json.dumps(list(stations)))
    with transaction(db):
        row = db.execute("SELECT name, args, stations FROM calls WHERE id = ?", (call_id,)).fetchone()
        if row is not None and tuple(row) != content:
            raise RunDbError(f"call {call_id} exists as {tuple(row)}; {content} needs an id of its own")
        if row is None:
            values = (call_id, *content, time.time() if now_s is None else now_s)
            db.execute("INSERT INTO calls (id, name, args, stations, time_s) VALUES (?, ?, ?, ?, ?)", values)
    return call_id


def open_calls(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Calls with the stations that have not answered yet. A station whose worker is replaced stays among them."""
    calls = []
    for row in db.execute("SELECT * FROM calls WHERE done_s IS NULL ORDER BY time_s, id").fetchall():
        waiting = [name for name in json.loads(row["stations"]) if name not in call_results(db, row["id"])]
        calls.append({"id": row["id"], "name": row["name"], "args": json.loads(row["args"]), "stations": waiting})
    return calls


def call_results(db: sqlite3.Connection, call_id: str) -> dict[str, tuple[bool, Any]]:
    """station -> (ok, value) of the stations that answered."""
    found = db.execute("SELECT station, ok, value FROM results WHERE call = ?", (call_id,))
    return {row["station"]: (bool(row["ok"]), json.loads(row["value"])) for row in found}


# -- what agents say ---------------------------------------------------------------------------------------------

INCIDENTS = ("exited", "suspected", "agent")


def apply_events(db: sqlite3.Connection, node: str, events: Sequence[Mapping[str, Any]]) -> None:
    """Takes journal events of a node, each once, in one transaction with the number of the last."""
    with transaction(db):
        last = applied_seq(db, node)
        for event in events:
            if event["seq"] > last:
                _apply(db, event)
                last = event["seq"]
        set_value(db, f"journal:{node}", str(last))


def applied_seq(db: sqlite3.Connection, node: str) -> int:
    """Number of the last journal event of a node that run.db holds."""
    return int(get_value(db, f"journal:{node}", "0"))


def _apply(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    kind = event["kind"]
    if kind == "launched":
        _launched(db, event)
    elif kind == "ready":
        _ready(db, event)
    elif kind == "retired":
        _retired(db, event)
    elif kind == "result":
        _result(db, event)
    else:
        _other(db, event)


def _launched(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    db.execute(
        "INSERT OR IGNORE INTO workers (worker, station, role, incarnation, pid, state, started_s, log) "
        "VALUES (?, ?, ?, ?, ?, 'starting', ?, ?)",
        (
            event["worker"], event["station"], event["place"]["role"], event["incarnation"], event["pid"],
            event["time_s"], event["log"],
        ),
    )  # fmt: skip


def _ready(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    db.execute(
        "UPDATE workers SET state = 'ready', ready_s = ? WHERE worker = ? AND state = 'starting'",
        (event["time_s"], event["worker"]),
    )
    db.execute(
        "UPDATE incidents SET recovered_s = ? WHERE station = ? AND recovered_s IS NULL",
        (event["time_s"], event["station"]),
    )


def _retired(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    db.execute(
        "UPDATE workers SET state = 'dead', ended_s = ?, how = ?, cause = ? WHERE worker = ?",
        (event["time_s"], event["how"], event["cause"], event["worker"]),
    )
    if event["how"] in INCIDENTS:
        db.execute(
            "INSERT OR IGNORE INTO incidents (worker, station, role, time_s, how, cause, returncode) "
            "SELECT worker, station, role, ?, ?, ?, ? FROM workers WHERE worker = ?",
            (event["time_s"], event["how"], event["cause"], event["returncode"], event["worker"]),
        )


def _result(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    """The first result of a station counts; a call is done when every station answered."""
    call = event["call"]
    row = db.execute("SELECT stations FROM calls WHERE id = ?", (call,)).fetchone()
    if row is None:  # kept for people; it must not stop the controller for ever
        _other(db, {**event, "kind": "stray_result"})
        return
    db.execute(
        "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?)",
        (call, event["station"], event["worker"], int(event["ok"]), json.dumps(event["value"]), event["time_s"]),
    )
    if set(json.loads(row["stations"])) <= set(call_results(db, call)):
        db.execute("UPDATE calls SET done_s = ? WHERE id = ? AND done_s IS NULL", (event["time_s"], call))


def _other(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    detail = {key: value for key, value in event.items() if key not in ("seq", "kind", "time_s", "station", "worker")}
    db.execute(
        "INSERT INTO events (time_s, kind, station, worker, detail) VALUES (?, ?, ?, ?, ?)",
        (event["time_s"], event["kind"], event["station"], event["worker"], json.dumps(detail)),
    )
    if event["kind"] == "fatal":
        text = f"station {event['station']} {event['why']}; its last words:\n{event['cause']}"
        set_value(db, "failure", get_value(db, "failure") or text)


# -- status ------------------------------------------------------------------------------------------------------


def save_status(db: sqlite3.Connection, stations: Sequence[Mapping[str, Any]]) -> None:
    """The stations' present state as their agents gave it."""
    now_s = time.time()
    values = [
        (
            each["state"], each["worker"], each["pid"], each["failures"], each["cause"], each["note"],
            now_s + each["retry_in_s"] if each["retry_in_s"] else 0.0, now_s, each["station"],
        )
        for each in stations
    ]  # fmt: skip
    with transaction(db):
        db.executemany(
            "UPDATE stations SET state = ?, worker = ?, pid = ?, failures = ?, cause = ?, note = ?, retry_at_s = ?, "
            "updated_s = ? WHERE name = ?",
            values,
        )


def read_status(db: sqlite3.Connection) -> Status:
    """The fleet at a glance."""
    found = rows(
        db,
        "SELECT name, role, desired, state, worker, pid, failures, cause, note, retry_at_s, updated_s FROM stations "
        "ORDER BY position, name",
    )
    phase = get_value(db, "phase", ENDED)
    return Status(phase, get_value(db, "failure"), tuple(StationStatus(**row) for row in found), time.time())
