"""run.db: keys, labels, many writers, events applied once."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cel_jax.recovery import rundb, rundb_fleet
from cel_jax.recovery.rundb import RunDbError
from cel_jax.recovery.stations import Placement, Role, Station, station_to_dict


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = rundb.open_db(tmp_path)
    yield connection
    connection.close()


@pytest.fixture
def labelled(db: sqlite3.Connection) -> sqlite3.Connection:
    rundb.start_episode(db, "e1", "arm-0", "w1", "robot-0", 10.0)
    rundb.end_episode(db, "e1", 120, 3, 14.0)
    rundb.label_episode(db, "e1", "success", "ana", now_s=20.0)
    return db


def test_label_is_once_only_and_needs_a_known_episode(labelled: sqlite3.Connection) -> None:
    assert rundb.get_episode(labelled, "e1").outcome == "success"
    with pytest.raises(RunDbError, match="already labelled success"):
        rundb.label_episode(labelled, "e1", "failure", "ben", now_s=21.0)
    with pytest.raises(RunDbError, match="e2: unknown"):
        rundb.label_episode(labelled, "e2", "failure", "ben")
    assert rundb.get_episode(labelled, "e1").outcome == "success"


def test_label_can_be_undone_for_ten_seconds_and_then_is_final(labelled: sqlite3.Connection) -> None:
    assert rundb.final_labels(labelled, now_s=30.0) == []
    rundb.undo_label(labelled, "e1", now_s=30.0)
    assert rundb.get_episode(labelled, "e1").outcome is None
    with pytest.raises(RunDbError, match="no label to undo"):
        rundb.undo_label(labelled, "e1", now_s=30.0)
    rundb.label_episode(labelled, "e1", "failure", "ana", "dropped", now_s=31.0)
    with pytest.raises(RunDbError, match="final"):
        rundb.undo_label(labelled, "e1", now_s=41.1)
    final = rundb.final_labels(labelled, now_s=41.1)
    assert [(row["episode"], row["outcome"], row["reason"]) for row in final] == [("e1", "failure", "dropped")]


def test_episode_ids_are_keys(labelled: sqlite3.Connection) -> None:
    with pytest.raises(RunDbError, match="use a new one"):
        rundb.start_episode(labelled, "e1", "arm-1", "w7", "robot-1", 11.0)
    with pytest.raises(RunDbError, match="never started"):
        rundb.end_episode(labelled, "e9", 1, 1, 1.0)
    assert [each.id for each in rundb.episodes(labelled, "outcome IS NOT NULL")] == ["e1"]


def test_episode_keeps_its_store_until_that_is_revoked(labelled: sqlite3.Connection) -> None:
    rundb.assign_store(labelled, "e1", "store-0")
    rundb.assign_store(labelled, "e1", "store-0")
    with pytest.raises(RunDbError, match="belongs to store store-0"):
        rundb.assign_store(labelled, "e1", "store-1")
    with pytest.raises(RunDbError, match="not with store store-1"):
        rundb.revoke_store(labelled, "e1", "store-1")
    rundb.revoke_store(labelled, "e1", "store-0")
    rundb.assign_store(labelled, "e1", "store-1")
    assert rundb.get_episode(labelled, "e1").store == "store-1"


def test_retrievals_metrics_events(labelled: sqlite3.Connection) -> None:
    rundb.add_retrieval(labelled, "r1", "e1", [{"episode": "e0", "start": 3, "end": 9, "cost": 0.5}])
    with pytest.raises(RunDbError, match="r1"):
        rundb.add_retrieval(labelled, "r1", "e1", [])
    rundb.add_metrics(labelled, 7, {"loss": 0.25, "norm": 1.0}, now_s=5.0)
    rundb.add_metrics(labelled, 3, {"loss": 0.5}, now_s=4.0)
    assert rundb.metric(labelled, "loss") == [(3, 0.5, 4.0), (7, 0.25, 5.0)]
    rundb.add_event(labelled, "starved", "no episode for 60 s", "learner")
    assert [event["detail"] for event in rundb.events(labelled, ["starved"])] == ["no episode for 60 s"]
    assert rundb.events(labelled, ["other"]) == []


def _write(run_dir: Path, number: int) -> None:
    connection = rundb.open_db(run_dir)
    for i in range(20):
        rundb.start_episode(connection, f"{number}-{i}", "arm", "w", "r", float(i))
        rundb.label_episode(connection, f"{number}-{i}", "success", "sim")
    connection.close()


def test_many_processes_create_and_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path / "new", number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    connection = rundb.open_db(tmp_path / "new")
    assert len(rundb.episodes(connection, "outcome = 'success'")) == 80
    connection.close()


def test_a_failed_transaction_leaves_nothing(db: sqlite3.Connection) -> None:
    with pytest.raises(ZeroDivisionError), rundb.transaction(db):
        rundb.set_value(db, "key", "half")
        _ = 1 / 0
    assert rundb.get_value(db, "key", "none") == "none"


def arm(name: str = "arm-0", robot: int = 0) -> Station:
    return Station(name, Role.ENVIRONMENT, Placement(argv=("python",), robot=robot))


def event(seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    base = {"seq": seq, "kind": kind, "time_s": float(seq), "station": "arm-0", "worker": "w1"}
    return {**base, **fields}


EVENTS = [
    event(1, "launched", pid=5, incarnation=1, place=station_to_dict(arm()), log="logs/w1.log"),
    event(2, "ready"),
    event(3, "retired", how="exited", cause="exit code 1", returncode=1),
    event(4, "report", report="peer lost", detail="x", suspect="", response="accept"),
    event(5, "launched", worker="w2", pid=6, incarnation=2, place=station_to_dict(arm()), log="logs/w2.log"),
    event(6, "ready", worker="w2"),
]


def test_journal_events_count_once_however_often_they_come(db: sqlite3.Connection) -> None:
    rundb_fleet.begin_run(db, [arm()])
    rundb_fleet.apply_events(db, "local", EVENTS[:4])
    rundb_fleet.apply_events(db, "local", EVENTS[2:])
    rundb_fleet.apply_events(db, "local", EVENTS)
    assert rundb_fleet.applied_seq(db, "local") == 6
    workers = rundb.rows(db, "SELECT worker, state, how FROM workers ORDER BY worker")
    assert [tuple(row.values()) for row in workers] == [("w1", "dead", "exited"), ("w2", "ready", None)]
    incidents = rundb.rows(db, "SELECT worker, time_s, recovered_s FROM incidents")
    assert [tuple(row.values()) for row in incidents] == [("w1", 3.0, 6.0)]
    assert len(rundb.events(db, ["report"])) == 1


def test_call_with_a_known_id_is_the_same_call(db: sqlite3.Connection) -> None:
    rundb_fleet.begin_run(db, [arm()])
    assert rundb_fleet.request_call(db, "begin", ["arm-0"], {"seed": 1}, "c1") == "c1"
    assert rundb_fleet.request_call(db, "begin", ["arm-0"], {"seed": 1}, "c1") == "c1"
    with pytest.raises(RunDbError, match="needs an id of its own"):
        rundb_fleet.request_call(db, "begin", ["arm-0"], {"seed": 2}, "c1")
    result = event(1, "result", call="c1", ok=True, value=7)
    stray = event(2, "result", call="c9", ok=True, value=7)
    rundb_fleet.apply_events(db, "local", [result, stray])
    assert rundb_fleet.open_calls(db) == [] and rundb_fleet.call_results(db, "c1") == {"arm-0": (True, 7)}
    assert len(rundb.events(db, ["stray_result"])) == 1


def test_one_robot_has_one_station(db: sqlite3.Connection) -> None:
    with pytest.raises(ValueError, match="robot 0 is at stations arm-0 and arm-1"):
        rundb_fleet.begin_run(db, [arm(), arm("arm-1")])
    rundb_fleet.begin_run(db, [arm()])
    with pytest.raises(ValueError, match="robot 0"):
        rundb_fleet.add_station(db, arm("arm-1"))
    assert [station.name for station, _ in rundb_fleet.stations(db)] == ["arm-0"]
    assert rundb_fleet.stations(db)[0][0] == arm()
