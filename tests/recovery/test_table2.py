"""The five rows of the paper's Table 2, each where this system uses the artifact. Without its identity check each of
these tests fails: test_table2_mutations.py takes the checks out one by one and sees it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cel_jax.bus import errors
from cel_jax.bus.channels import ObservationClient, StepId
from cel_jax.bus.client import Client
from cel_jax.bus.deferred import Deferred
from cel_jax.bus.endpoints import ipc_endpoint
from cel_jax.bus.home import Home
from cel_jax.bus.identity import Identity
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.server import Server
from cel_jax.recovery import settings
from cel_jax.recovery.agent import Agent
from cel_jax.recovery.membership import Response
from cel_jax.recovery.slots import Phase, Slot
from tests.recovery.test_membership import ARM, FIRST, NEW, OLD, SECOND, fleet, record, view

HOME_OLD, HOME_NEW = Identity("home", "home-1", "home"), Identity("home", "home-2", "home")
ROBOT = Identity("robot-0", "robot-0-1", "environment")


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return ipc_endpoint(tmp_path / "ipc", "home.sock")


@contextlib.contextmanager
def agent_with(run_dir: Path, worker: str) -> Iterator[tuple[Agent, Slot]]:
    """An agent whose arm-0 was w1's and is `worker`'s now, a process that sleeps."""
    settings.save(run_dir, settings.FleetSettings())
    agent = Agent(run_dir, "local")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    slot = Slot(ARM)
    slot.launched(record(worker, 2), process, run_dir / "log", time.monotonic())
    agent._keeper.registry, agent._keeper.slots[ARM.name] = fleet("w1", worker), slot
    try:
        yield agent, slot
    finally:
        process.kill()
        process.wait(10)
        agent._liveness.close()
        agent._context.destroy(linger=0)
        agent._journal.close()


# -- row 1: membership record -> refuse and wait for a fresh one ---------------------------------------------------


def test_row_1_a_record_of_a_dead_worker_is_refused_and_a_fresh_one_waited_for() -> None:
    peers = view(FIRST)
    held = peers.get("arm-0")
    assert held is not None and peers.wait_fresh("arm-0", 1.0, held=held) == held
    peers.update(2, {"arm-0": {**SECOND["arm-0"], "worker": ""}})  # dead, no successor yet
    later = threading.Timer(0.1, peers.update, (3, SECOND))
    later.start()
    assert peers.wait_fresh("arm-0", 5.0, held=held).identity == NEW


def test_row_1_a_late_table_does_not_bring_a_dead_worker_back() -> None:
    peers, epochs = view(FIRST, SECOND), list[int]()
    peers.follow("arm-0", epochs.append)
    peers.update(1, FIRST)
    peer = peers.get("arm-0")
    assert peer is not None and peer.identity == NEW and epochs == [2]


# -- row 2: control message in flight -> ignore --------------------------------------------------------------------


def test_row_2_a_late_failure_report_does_not_retire_the_replacement(tmp_path: Path) -> None:
    with agent_with(tmp_path, "w2") as (agent, slot):
        suspect = [OLD.station, OLD.worker, OLD.role]
        agent._take_mail("w2", {"t": "report", "kind": "peer lost", "detail": "late", "suspect": suspect})
        assert slot.phase is Phase.LIVE and agent._journal.events[-1]["response"] == Response.IGNORE.value
        agent._take_mail("w2", {"t": "report", "kind": "peer lost", "detail": "true", "suspect": ["arm-0", "w2", "x"]})
        assert slot.phase is not Phase.LIVE


def test_row_2_a_late_result_does_not_answer_for_the_replacement(tmp_path: Path) -> None:
    with agent_with(tmp_path, "w2") as (agent, _):
        for worker in ("w1", "w2"):
            agent._take_mail(worker, {"t": "result", "call": "load-7", "ok": True, "value": worker})
        results = [event["value"] for event in agent._journal.events if event["kind"] == "result"]
        assert results == ["w2"]


# -- row 3: connection held by a peer -> rebuild under a new epoch -------------------------------------------------


def test_row_3_the_replacement_does_not_join_an_outdated_connection_group(endpoint: str) -> None:
    seen: list[tuple[int, int]] = []

    def note(request: Request) -> Reply:
        seen.append((request.header["n"], request.epoch))
        return Reply()

    with Client(endpoint, ROBOT, "home", epoch=1) as client:
        with Server(endpoint, HOME_OLD, {"note": note}, epoch=1):
            client.call("note", {"n": 1}, deadline_s=5.0)
        with Server(endpoint, HOME_NEW, {"note": note}, epoch=2):
            client.call("note", {"n": 2}, deadline_s=5.0)
        assert seen == [(1, 1), (2, 2)] and client.epoch == 2


def test_row_3_a_wait_on_the_old_connection_ends_when_the_epoch_advances(endpoint: str) -> None:
    taken, peers = threading.Event(), view(FIRST)

    def hold(_: Request) -> Deferred:
        taken.set()
        return Deferred()

    with Server(endpoint, HOME_OLD, {"hold": hold}):
        with Client(endpoint, ROBOT, "home") as client:
            peers.follow("arm-0", client.advance_epoch)
            waiting = client.submit("hold", deadline_s=60.0)
            assert taken.wait(5.0)
            peers.update(2, SECOND)
            with pytest.raises(errors.EpochAdvanced):
                waiting.result(5.0)


# -- row 4: data in the pipeline -> drop and receive again ---------------------------------------------------------


def test_row_4_an_action_for_the_predecessors_observation_is_dropped_and_asked_again(endpoint: str) -> None:
    mine = StepId("robot-0", "robot-0-2", "e", 3)
    answers = [{"worker": "robot-0-1"}, {"step": 2}, {"episode": "d"}, {}]

    def answer(request: Request) -> Reply:
        head = {"station": "robot-0", "worker": "robot-0-2", "episode": "e", "step": 3, **answers.pop(0)}
        return Reply({**head, "policy_version": len(answers), "arrays": {}})

    with Server(endpoint, HOME_OLD, {"request": answer}), Client(endpoint, ROBOT, "home") as client:
        robot = ObservationClient(client)
        reply = robot.infer(mine, "pack", {"state": np.zeros(2, np.float32)}, 5.0)
    assert reply.policy_version == 0 and robot.counters["mismatched_replies"] == 3


def _request(op: str, sender: str, **header: Any) -> Request:
    return Request(op, 1, Identity("robot-0", sender, "x"), "home", 0, 60.0, {"channel": "o", **header})


def _put(worker: str) -> Request:
    return _request("put", worker, key="robot-0", station="robot-0", worker=worker, episode="e", step=0)


def test_row_4_an_observation_of_a_retired_worker_is_not_served() -> None:
    home = Home()
    home.put(_put("robot-0-1"))
    home.put(_put("robot-0-2"))  # a new worker at the station: what its predecessor left goes
    assert [item.worker for item in home._channels["o"]._items] == ["robot-0-2"]
    with pytest.raises(errors.StaleIdentity):
        home.put(_put("robot-0-1"))


def test_row_4_an_answer_of_a_retired_inference_worker_is_dropped() -> None:
    home = Home()
    home.put(_put("robot-0-2"))
    home._channels["o"].take("gpu-1", 1, 60.0)
    home.retire_worker("gpu-1")
    item = {"worker": "robot-0-2", "episode": "e", "step": 0, "buffers": 0}
    with pytest.raises(errors.StaleIdentity):
        home.answer(_request("answer", "gpu-1", items=[item]))
    assert home.answer(_request("answer", "gpu-2", items=[item])).header["first"] == 1


# -- row 5: queued transfer -> replay on the new connection --------------------------------------------------------


def test_row_5_transfers_that_waited_for_a_connection_go_out_in_order_on_the_new_one(endpoint: str) -> None:
    ran: list[tuple[int, int]] = []

    def note(request: Request) -> Reply:
        ran.append((request.header["n"], request.epoch))
        return Reply()

    peers = view(FIRST)
    with Client(endpoint, ROBOT, "home") as client:
        peers.follow("arm-0", client.advance_epoch)
        futures = [client.submit("note", {"n": n}, deadline_s=4.0) for n in range(5)]
        peers.update(2, SECOND)
        with Server(endpoint, HOME_NEW, {"note": note}, epoch=2) as server:
            for future in futures:
                future.result(5.0)
            refused = server.counters["refused_stale_epoch"]
    assert ran == [(n, 2) for n in range(5)] and refused == 0


def test_row_5_transfers_on_a_connection_whose_epoch_is_over_are_replayed_once_and_in_order(endpoint: str) -> None:
    ran: list[tuple[int, int]] = []
    busy, go_on = threading.Event(), threading.Event()

    def note(request: Request) -> Reply:
        ran.append((request.header["n"], request.epoch))
        busy.set()
        go_on.wait(5.0)
        return Reply()

    with Server(endpoint, HOME_OLD, {"note": note}, epoch=1) as server:
        with Client(endpoint, ROBOT, "home", epoch=1) as client:
            futures = [client.submit("note", {"n": 0}, [b"zero"], deadline_s=4.0)]
            assert busy.wait(5.0)
            futures += [client.submit("note", {"n": n}, [b"x" * n], deadline_s=4.0) for n in range(1, 6)]
            server.advance_epoch(2)
            go_on.set()
            for future in futures:
                future.result(5.0)
    assert ran == [(0, 1), *((n, 2) for n in range(1, 6))]
