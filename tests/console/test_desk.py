"""The desk over CURVE: who may do what, which orders reach a station, and what a restarted desk still knows."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cel_jax.bus import errors
from cel_jax.bus.client import Client
from cel_jax.bus.identity import Identity
from cel_jax.bus.security import ClientCurve, ServerCurve, generate_keys, load_allow_list, load_keys, load_public
from cel_jax.bus.server import Server
from cel_jax.console import desk, hub
from cel_jax.console.desk import DESK, DeskClient, Finished, Orders, Report, StationLink
from cel_jax.console.hub import ROLES, Hub, steady_clock
from cel_jax.recovery import rundb, rundb_fleet
from cel_jax.recovery.stations import Placement, Role, Station
from cel_jax.workers.desk import handlers
from cel_jax.workers.jobs import JobQueue

PAGE, ROBOT = Identity("console", "w-p", DESK), Identity("robot-00", "w-r", "environment")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def wait(condition: Callable[[], Any]) -> None:
    ends_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends_s
        threading.Event().wait(0.01)


class Running:
    """A desk in this process, with its keys; `restart` forgets all but the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys, self.clock = folder, folder / "keys", Clock()
        for name in ("server", "desk", "environment", "inference"):
            generate_keys(self.keys, name)
        db = rundb.open_db(folder)
        place = Placement(argv=("python",), robot=0)
        stations = [Station(f"robot-0{i}", Role.ENVIRONMENT, dataclasses.replace(place, robot=i)) for i in range(2)]
        rundb_fleet.begin_run(db, stations)
        for number in range(3):
            rundb.start_episode(db, f"e-{number}", "robot-00", "w-r", "toy", 1.0)
        db.close()
        self._clients: list[Client] = []
        self._begin()

    def _begin(self) -> None:
        jobs, self._stop, made = JobQueue(), threading.Event(), threading.Event()

        def loop() -> None:
            db = rundb.open_db(self.folder)
            self.hub = Hub(db, 60.0, self.clock)
            made.set()
            while not self._stop.is_set():
                jobs.run_for(0.02)
                self.hub.tick()
            db.close()

        self._thread = threading.Thread(target=loop)
        self._thread.start()
        assert made.wait(10)
        curve = ServerCurve(load_keys(self.keys, "server"), load_allow_list(self.keys), ROLES)
        table = {op: lambda request, op=op: handlers(self.hub, jobs)[op](request) for op in ROLES}
        self.server = Server("tcp://127.0.0.1:*", Identity(DESK, "w-d", "home"), table, curve)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.server.close()
        self._stop.set()
        self._thread.join(10)

    def restart(self) -> None:
        self.close()
        self._begin()

    def client(self, identity: Identity = PAGE, key: str = DESK) -> Client:
        curve = ClientCurve(load_keys(self.keys, key), load_public(self.keys, "server"))
        self._clients.append(Client(self.server.endpoint, identity, DESK, curve))
        return self._clients[-1]

    def page(self) -> DeskClient:
        return DeskClient(self.client())

    def report(self, *episodes: str, **more: object) -> Orders:
        finished = tuple(Finished(name, "w-r", "toy", 1.0, 5, 0, 2.0) for name in episodes)
        report = Report(finished=finished, **{"phase": desk.WAITS_FOR_START, **more})  # type: ignore[arg-type]
        client = self.client(ROBOT, "environment")
        return desk.orders_from_dict(client.call("report", desk.report_to_dict(report), deadline_s=5).header)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.close()


ORDERS = {
    "label": {"episode": "e-0", "outcome": "success", "author": "eve"},
    "undo": {"episode": "e-0", "author": "eve"},
    "start": {"station": "robot-00", "author": "eve"},
    "stop": {"stations": [], "author": "eve"},
    "release": {"stations": [], "author": "eve"},
    "tiles": {},
}


@pytest.mark.parametrize("op", sorted(ORDERS))
@pytest.mark.parametrize(
    "key,identity",
    [
        ("environment", ROBOT),  # a robot may not label
        ("environment", PAGE),  # nor by claiming to be the page
        ("inference", Identity("inference-0", "w-i", "inference")),
        ("server", PAGE),
    ],
)
def test_a_peer_without_the_role_is_refused(running: Running, op: str, key: str, identity: Identity) -> None:
    running.report("e-0")
    with pytest.raises(errors.RemoteError, match="may not") as refused:
        running.client(identity, key).call(op, ORDERS[op], deadline_s=5)
    assert refused.value.remote_kind == "access_refused"
    assert not running.report("e-0").labels and not running.hub.stops


def test_the_page_may_not_report_and_a_stranger_nothing(running: Running, tmp_path: Path) -> None:
    with pytest.raises(errors.RemoteError, match="may not"):
        running.client().call("report", desk.report_to_dict(Report("running")), deadline_s=5)
    stranger = generate_keys(tmp_path / "other", DESK)
    curve = ClientCurve(stranger, load_public(running.keys, "server"))
    with Client(running.server.endpoint, PAGE, DESK, curve) as client, pytest.raises(errors.AccessRefused):
        client.call("tiles", {}, deadline_s=5)


@pytest.mark.parametrize("op", sorted(ORDERS))
def test_claimed_roles_are_checked_without_keys_too(running: Running, op: str) -> None:
    """On one machine the socket has no keys."""
    from cel_jax.bus.deferred import Deferred
    from cel_jax.bus.message import Request

    said: list = []
    deferred = Deferred()
    deferred.bind(said.append)
    running.hub.serve(Request(op, 1, ROBOT, DESK, 0, 1.0, ORDERS[op]), deferred)
    assert said[0].is_error and said[0].header["kind"] == "access_refused"


def test_a_label_is_given_once_undone_in_time_and_then_final(running: Running) -> None:
    page = running.page()
    assert not running.report("e-0").labels
    page.label("e-0", "success", "ann")
    label, final = running.report("e-0").labels["e-0"]
    assert (label.outcome.value, label.author, label.time_s, final) == ("success", "ann", 1000.0, False)
    with pytest.raises(errors.RemoteError, match="e-0 is already labelled success by ann; undo it first"):
        page.label("e-0", "failure", "bob")
    running.clock.now_s += 9.9
    page.undo("e-0", "ann")
    assert not running.report("e-0").labels
    page.label("e-0", "failure", "bob")
    running.clock.now_s += 10.0
    with pytest.raises(errors.RemoteError, match="e-0: its label is final"):
        page.undo("e-0", "bob")
    wait(lambda: running.report("e-0").labels["e-0"][1])
    assert running.report("e-0").labels["e-0"][0].outcome.value == "failure"
    running.clock.now_s -= 3600  # the clock is set back: what is final stays final
    with pytest.raises(errors.RemoteError, match="final"):
        page.undo("e-0", "bob")
    running.report()  # it went out
    with pytest.raises(errors.RemoteError, match="e-0 is already labelled failure by bob; it is final"):
        page.label("e-0", "success", "ann")


def test_a_restarted_desk_knows_labels_and_stops(running: Running) -> None:
    running.report("e-0", "e-1")
    running.page().label("e-0", "success", "ann")
    running.page().stop(["robot-00"], "ann")
    running.restart()
    orders = running.report("e-0", "e-1")
    assert orders.stop and set(orders.labels) == {"e-0"}
    with pytest.raises(errors.RemoteError, match="already labelled success by ann"):
        running.page().label("e-0", "failure", "bob")
    running.page().undo("e-0", "ann")
    running.page().release(["robot-00"], "ann")
    running.restart()
    assert running.report("e-0", "e-1") == Orders()


def test_what_cannot_be_labelled_is_named(running: Running) -> None:
    page = running.page()
    with pytest.raises(errors.RemoteError, match=r"'e-77': unknown") as unknown:
        page.label("e-77", "success", "ann")
    assert unknown.value.remote_kind == "unknown_episode"
    with pytest.raises(errors.RemoteError, match="e-2: it did not finish"):
        page.label("e-2", "success", "ann")
    with pytest.raises(errors.RemoteError, match="no robot robot-09"):
        page.stop(["robot-09"], "ann")
    with pytest.raises(errors.RemoteError, match="not one of this run's robots"):
        running.client(Identity("robot-09", "w", "environment"), "environment").call(
            "report", desk.report_to_dict(Report("running")), deadline_s=5
        )


def test_a_start_is_taken_once_and_is_void_after_a_while(running: Running) -> None:
    page = running.page()
    with pytest.raises(errors.RemoteError, match="has not reported yet"):
        page.start("robot-00", "ann")
    running.report("e-0")
    with pytest.raises(errors.RemoteError, match="label episode e-0 first"):
        page.start("robot-00", "ann")
    running.report()
    page.start("robot-00", "ann")
    with pytest.raises(errors.RemoteError, match="starting already"):
        page.start("robot-00", "bob")
    start = running.report().start
    assert start and not running.report(started=start, phase=desk.RESETTING).start
    running.report()
    page.start("robot-00", "ann")
    next(iter(running.hub.stations.values())).start_by_s = time.monotonic() - 0.01
    threading.Event().wait(0.1)
    assert not running.report().start, "nobody expects a robot to move this late"


def test_an_open_question_is_answered_by_a_stop_at_once(running: Running) -> None:
    client, page = running.client(ROBOT, "environment"), running.page()
    report = desk.report_to_dict(Report(desk.RUNNING, "e-0"))
    client.call("report", report, deadline_s=5)
    page.tiles()
    waits = client.submit("report", report, deadline_s=5)
    threading.Event().wait(0.05)
    assert not waits.done()
    pressed_s = time.monotonic()
    page.stop([], "ann")
    assert desk.orders_from_dict(waits.result(5).header).stop
    assert time.monotonic() - pressed_s < 0.2


def test_a_stop_does_not_wait_for_the_disk(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client, report = running.client(ROBOT, "environment"), desk.report_to_dict(Report(desk.RUNNING, "e-0"))
    client.call("report", report, deadline_s=5)
    release = threading.Event()
    monkeypatch.setattr(running.hub._ledger, "stop", lambda *args: release.wait(5))
    monkeypatch.setattr(hub, "HOLD_S", 4.0)
    waits = client.submit("report", report, deadline_s=5)
    wait(lambda: running.hub.stations["robot-00"].asked)
    stops = running.client().submit("stop", ORDERS["stop"], deadline_s=5)
    assert desk.orders_from_dict(waits.result(2).header).stop and not stops.done()
    release.set()
    assert stops.result(5).header["stations"] == ["robot-00", "robot-01"]


def test_the_clock_of_the_desk_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before_s = clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0.0 <= clock() - before_s < 1.0


def test_a_label_while_it_runs_ends_the_episode_first(running: Running) -> None:
    running.report(phase=desk.RUNNING, episode="e-0")
    waits = running.client().submit("label", ORDERS["label"], deadline_s=5)
    wait(lambda: running.hub._ending)
    assert running.report(phase=desk.RUNNING, episode="e-0").end == "e-0"
    assert not waits.done(), "nothing is confirmed that could still be lost"
    orders = running.report("e-0", phase=desk.WAITS_FOR_LABEL, episode="e-0")
    assert waits.result(5).header["outcome"] == "success" and orders.labels["e-0"][0].author == "eve"


def test_a_run_that_ends_takes_its_labels_along(running: Running) -> None:
    running.report("e-0")
    running.page().label("e-0", "success", "ann")
    assert running.report("e-0", ending=True).labels["e-0"][1], "nobody can undo any more"


def test_a_station_without_its_desk_stands_still(running: Running) -> None:
    halts: list[float] = []
    link = StationLink(
        running.client(ROBOT, "environment"), lambda: Report(desk.RUNNING, "e-0"), lambda orders: None, 1.0,
        lambda: halts.append(time.monotonic()),
    )  # fmt: skip
    link.start()
    threading.Event().wait(1.5)
    assert not link.stop_due and not halts
    running.server.close()
    closed_s = time.monotonic()
    wait(lambda: link.stop_due)
    assert time.monotonic() - closed_s < 1.5
    wait(lambda: halts)
    assert len(halts) == 1
    link.close()


def test_a_dead_link_stops_the_robot_and_is_noticed(running: Running) -> None:
    def broken() -> Report:
        raise ZeroDivisionError("broken")

    link = StationLink(running.client(ROBOT, "environment"), broken, lambda orders: None, 1.0)
    link.start()
    link._thread.join(5)
    assert link.stop_due
    with pytest.raises(desk.LinkDied, match="ZeroDivisionError: broken"):
        link.check()
