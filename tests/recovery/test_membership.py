"""The registry's three operations and the workers' copies of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cel_jax.bus.identity import Identity
from cel_jax.bus.identity import Registry as BusRegistry
from cel_jax.recovery import membership
from cel_jax.recovery.membership import Artifact, MembershipError, Registry, Response
from cel_jax.recovery.peers import Peer, PeerLost, PeerView
from cel_jax.recovery.registry_journal import replay
from cel_jax.recovery.stations import Placement, Role, Station, WorkerRecord, WorkerState, station_to_dict

ARM = Station("arm-0", Role.ENVIRONMENT, Placement(argv=("python",), robot=0))


def record(worker: str, incarnation: int = 1) -> WorkerRecord:
    return WorkerRecord(Identity("arm-0", worker, "environment"), 100, WorkerState.READY, 1.0, incarnation)


def fleet(*workers: str) -> Registry:
    """A registry whose arm-0 was occupied by these workers in turn; the last is there now."""
    registry = membership.admit(Registry(), ARM, record(workers[0]))
    for incarnation, worker in enumerate(workers[1:], start=2):
        registry = membership.retire(registry, record(workers[incarnation - 2]).identity, "died", 2.0)
        registry = membership.readmit(registry, record(worker, incarnation))
    return registry


OLD, NEW = record("w1").identity, record("w2").identity
FIRST, SECOND = membership.to_table(fleet("w1")), membership.to_table(fleet("w1", "w2"))


def view(*tables: dict[str, dict[str, object]]) -> PeerView:
    peers = PeerView()
    for version, table in enumerate(tables, start=1):
        peers.update(version, table)
    return peers


def test_retired_records_stay_marked_dead_and_the_epoch_advances() -> None:
    registry = fleet("w1", "w2")
    assert registry.records["w1"].state is WorkerState.DEAD and registry.records["w1"].cause == "died"
    assert registry.occupant == {"arm-0": "w2"} and membership.epoch_of(registry, "arm-0") == 2


def test_admit_refuses_an_occupied_station_and_a_used_identity() -> None:
    with pytest.raises(MembershipError, match="w1 is still there"):
        membership.readmit(fleet("w1"), record("w9"))
    free = membership.retire(fleet("w1"), OLD, "died", 2.0)
    with pytest.raises(MembershipError, match="used before"):
        membership.readmit(free, record("w1"))
    with pytest.raises(MembershipError, match="never admitted"):
        membership.readmit(Registry(), record("w1"))


@pytest.mark.parametrize(
    ("artifact", "response"),
    [
        (Artifact.MEMBERSHIP_RECORD, Response.REFUSE_AND_WAIT),
        (Artifact.CONTROL_MESSAGE, Response.IGNORE),
        (Artifact.CONNECTION, Response.REBUILD),
        (Artifact.DATA, Response.DROP_AND_RECEIVE_AGAIN),
        (Artifact.QUEUED_TRANSFER, Response.REPLAY),
    ],
)
def test_table_2(artifact: Artifact, response: Response) -> None:
    registry = fleet("w1", "w2")
    assert membership.check(registry, artifact, OLD) is response
    assert membership.check(registry, artifact, NEW) is Response.ACCEPT
    assert membership.check(registry, artifact, NEW, epoch=2) is Response.ACCEPT
    assert membership.check(registry, artifact, NEW, epoch=1) is response
    assert view(FIRST, SECOND).check(artifact, OLD) is response


def test_a_wait_ends_at_its_deadline_and_when_it_is_told_to() -> None:
    with pytest.raises(PeerLost, match="arm-0"):
        view().wait_fresh("arm-0", 0.0)
    with pytest.raises(PeerLost):
        view().wait_fresh("arm-0", 60.0, ended=lambda: True)


def test_a_late_report_does_not_retire_the_replacement() -> None:
    registry = fleet("w1", "w2")
    assert membership.retire(registry, OLD, "late report", 3.0) == registry
    once = membership.retire(registry, NEW, "first report", 3.0)
    assert membership.retire(once, NEW, "second report", 4.0) == once


def test_subscribers_hear_of_each_retired_worker_once_and_the_bus_registry_follows() -> None:
    peers, heard, registry = view(FIRST), list[Identity](), BusRegistry()
    peers.feed(registry)
    peers.on_retire(heard.append)
    assert registry.is_current(OLD)
    peers.update(2, membership.to_table(membership.retire(fleet("w1"), OLD, "died", 2.0)))
    peers.update(3, SECOND)
    assert heard == [OLD] and registry.is_dead("w1") and registry.is_current(NEW)


def test_a_unit_names_the_others_that_restart_with_a_station() -> None:
    registry = Registry()
    for name in ("learner-0", "learner-1", "alone"):
        station = Station(name, Role.TRAINING, Placement(argv=("x",)), unit="" if name == "alone" else "learners")
        registry = membership.admit(registry, station, dataclasses.replace(record(name), identity=_learner(name)))
    assert membership.unit_members(registry, "learner-0") == (_learner("learner-1"),)
    assert membership.unit_members(registry, "alone") == ()


def _learner(name: str) -> Identity:
    return Identity(name, name, "training")


def test_journal_tells_the_same_registry() -> None:
    place = station_to_dict(ARM)
    launch = {"kind": "launched", "station": "arm-0", "pid": 100, "start_ticks": 0, "place": place, "time_s": 1.0}
    events: list[dict[str, Any]] = [
        {**launch, "worker": "w1", "incarnation": 1},
        {"kind": "ready", "worker": "w1"},
        {"kind": "report", "worker": "w1"},
        {"kind": "retired", "worker": "w1", "cause": "died", "time_s": 2.0},
        {**launch, "worker": "w2", "incarnation": 2},
        {"kind": "ready", "worker": "w2"},
    ]
    assert replay(events) == fleet("w1", "w2")


def test_peer_is_waited_for_until_it_is_ready() -> None:
    starting = {"arm-0": {**SECOND["arm-0"], "state": "starting"}}
    peers = view(starting)

    def becomes_ready() -> bool:
        peers.update(2, SECOND)
        return False

    assert peers.wait_fresh("arm-0", 5.0, ended=becomes_ready) == Peer(NEW, 2, "ready")
