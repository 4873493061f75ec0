"""Homes over sockets: batching, replies to their own observation only, leases, replacement, retirement."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from cel_jax.bus import errors
from cel_jax.bus.channels import ActionReply, InferenceFeed, ObservationClient, StepId
from cel_jax.bus.home import Home, HomeLimits
from cel_jax.bus.identity import Identity
from cel_jax.bus.queue import QueueLimits
from cel_jax.bus.transport import Reply, Request

FETCH = {"channel": "observations", "target": 1, "timeout_s": 0.0, "wait_s": 60.0}


def _home(net, name="a", station="home", **limits) -> Home:
    home = Home(HomeLimits(**limits))
    net.server(home.handlers(), name=name, station=station, tick=home.tick)
    return home


def _head(worker="w-1", step=0, episode="e", station="robot-0", **more):
    base = {"channel": "observations", "key": station, "station": station, "worker": worker, "episode": episode}
    return {**base, "step": step, "task": "t", "arrays": {}, **more}


def _fetch(client, target=4, timeout_s=0.0, wait_s=2.0, **more):
    head = {"channel": "observations", "target": target, "timeout_s": timeout_s, "wait_s": wait_s, **more}
    return [item["header"] for item in client.call("fetch", head, deadline_s=wait_s + 5).header["items"]]


def _answer(client, *heads):
    items = [{**head, "policy_version": 1, "arrays": {}, "buffers": 0} for head in heads]
    return client.call("answer", {"channel": "observations", "items": items}, deadline_s=5).header


def _act(feed: InferenceFeed, batches: int, **how) -> list[int]:
    sizes = []
    for _ in range(batches):
        batch = feed.fetch(**how)
        sizes.append(len(batch))
        feed.answer([ActionReply(r.id, 9, {"action": r.arrays["state"] * 2}) for r in batch])
    return sizes


def test_infer_returns_the_action_of_its_own_observation(net):
    _home(net)
    feed = InferenceFeed([net.client(station="gpu-0")])
    worker = threading.Thread(target=_act, args=(feed, 3), kwargs={"target": 1, "timeout_s": 0.0, "wait_s": 5.0})
    worker.start()
    robot = ObservationClient(net.client())
    for step in range(3):
        id = StepId("robot-0", "w-1", "e", step)
        reply = robot.infer(id, "pack", {"state": np.full(3, step, np.float32), "images": {"head": [b"jpeg"]}}, 5.0)
        assert (reply.id, reply.policy_version) == (id, 9)
        assert reply.arrays["action"].tolist() == [2.0 * step] * 3
    worker.join(5)
    assert not worker.is_alive()


def test_batch_goes_out_at_its_target_before_the_timeout(net):
    _home(net)
    robot, gpu = net.client(), net.client(station="gpu-0")
    for step in range(3):
        robot.submit("request", _head(step=step), deadline_s=30)
    start_s = time.monotonic()
    assert [head["step"] for head in _fetch(gpu, target=3, timeout_s=20.0)] == [0, 1, 2]
    assert time.monotonic() - start_s < 2.0


def test_batch_goes_out_at_its_timeout_below_the_target(net):
    _home(net)
    start_s = time.monotonic()
    net.client().submit("request", _head(), deadline_s=30)
    assert len(_fetch(net.client(station="gpu-0"), target=8, timeout_s=0.2)) == 1
    assert 0.15 < time.monotonic() - start_s < 1.5


def test_fetch_without_items_ends_empty(net):
    _home(net)
    assert _fetch(net.client(station="gpu-0"), wait_s=0.1) == []


def test_keys_are_separate_queues(net):
    _home(net)
    robot, gpu = net.client(), net.client(station="gpu-0")
    for step in range(4):
        robot.call("put", _head(step=step, key="even" if step % 2 == 0 else "odd"), deadline_s=5)
    assert [head["step"] for head in _fetch(gpu, key="odd")] == [1, 3]
    assert [head["step"] for head in _fetch(gpu)] == [0, 2]


def test_ended_lease_requeues_at_the_front_and_the_first_answer_wins(net):
    home = _home(net, lease_s=0.2)
    robot, slow, quick = net.client(), net.client(station="gpu-0"), net.client(station="gpu-1")
    futures = [robot.submit("request", _head(step=step), deadline_s=30) for step in range(3)]
    robot.call("stats", deadline_s=5)  # the home has all three now
    held = _fetch(slow, target=2)
    again = _fetch(quick, target=3, timeout_s=5.0)
    assert [head["step"] for head in again] == [0, 1, 2]
    assert _answer(quick, *again) == {"first": 3, "late": 0}
    assert _answer(slow, *held) == {"first": 0, "late": 2}
    assert [future.result(5).header["step"] for future in futures] == [0, 1, 2]
    assert home.stats(None).header["channels"]["observations"]["counts"]["late_answers"] == 2


def test_retired_claimant_gives_back_and_may_not_come_back(net):
    _home(net)
    robot, controller = net.client(), net.client(station="controller")
    dead, alive = net.client(station="gpu-0", worker="g-dead"), net.client(station="gpu-0", worker="g-new")
    robot.submit("request", _head(), deadline_s=30)
    held = _fetch(dead)
    assert controller.call("retire", {"worker": "g-dead"}, deadline_s=5).header == {"dropped": 0, "requeued": 1}
    assert _fetch(alive) == held
    for call in (lambda: _answer(dead, *held), lambda: _fetch(dead)):
        with pytest.raises(errors.RemoteError, match="retired"):
            call()


def test_retirement_ends_the_fetch_that_waits(net):
    _home(net)
    dead, controller = net.client(station="gpu-0", worker="g-dead"), net.client(station="controller")
    future = dead.submit("fetch", FETCH, deadline_s=60)
    dead.call("stats", deadline_s=5)  # its fetch waits in the home now
    controller.call("retire", {"worker": "g-dead"}, deadline_s=5)
    with pytest.raises(errors.RemoteError, match="retired"):
        future.result(5)


def test_batch_that_could_not_be_delivered_goes_back_at_once():
    home, sent = Home(HomeLimits(lease_s=60.0)), []
    for op, station, head in [("put", "robot-0", _head()), ("fetch", "gpu-0", FETCH), ("fetch", "gpu-1", FETCH)]:
        answer = home.handlers()[op](Request(op, 1, Identity(station, station, ""), "home", 0, 5.0, head))
        if op == "fetch":
            answer.bind(lambda reply, station=station: sent.append((station, len(reply.header["items"]))))
            home.tick()
            if station == "gpu-0":
                answer.on_undelivered()
    assert sent == [("gpu-0", 1), ("gpu-1", 1)] and home.counters["undelivered_batches"] == 1


def test_new_worker_drops_what_its_predecessor_left(net):
    home = _home(net)
    old, new, gpu = net.client(), net.client(), net.client(station="gpu-0")
    left = [old.submit("request", _head("w-old", step), deadline_s=30) for step in range(2)]
    old.call("stats", deadline_s=5)  # the home has both now
    claimed = _fetch(gpu, target=1)
    new.call("put", _head("w-new", 0), deadline_s=5)
    assert [head["worker"] for head in _fetch(gpu)] == ["w-new"]
    for future in left:
        with pytest.raises(errors.RemoteError, match="retired"):
            future.result(5)
    assert _answer(gpu, *claimed)["late"] == 1
    with pytest.raises(errors.RemoteError) as caught:
        old.call("request", _head("w-old", 2), deadline_s=5)
    assert caught.value.remote_kind == "stale_identity"
    assert home.counters.snapshot() == {"predecessors_replaced": 1, "requests_of_retired": 1}


def test_full_queue_refuses_by_name(net):
    _home(net, queue=QueueLimits(items=1))
    robot = net.client()
    robot.submit("request", _head(), deadline_s=30)
    with pytest.raises(errors.RemoteError, match=r"'observations'.*1 items") as caught:
        robot.call("request", _head(step=1), deadline_s=5)
    assert caught.value.remote_kind == "bound"


def test_observation_whose_robot_gave_up_is_not_served(net):
    home = _home(net)
    with pytest.raises(errors.BusError):
        net.client().call("request", _head(), deadline_s=0.1)
    counts = home._channels["observations"].counts
    ends_s, idle = time.monotonic() + 5, threading.Event()
    while not counts["expired"] and time.monotonic() < ends_s:
        idle.wait(0.005)
    assert _fetch(net.client(station="gpu-0"), wait_s=0.1) == [] and counts["expired"] == 1


def test_mismatched_reply_is_dropped_and_the_question_asked_again(net):
    home = _home(net)
    wrong = {"left": 2}

    def corrupt(queue, head, buffers):
        if wrong["left"]:
            wrong["left"] -= 1
            item = queue.answer(next(iter(queue._items)))
            return int(item.payload.answer.reply(Reply({**head, "worker": "w-old"}, buffers)))
        return Home._answer_one(home, queue, head, buffers)

    home._answer_one = corrupt  # type: ignore[method-assign]
    feed = InferenceFeed([net.client(station="gpu-0")])
    worker = threading.Thread(target=_act, args=(feed, 3), kwargs={"target": 1, "timeout_s": 0.0, "wait_s": 5.0})
    worker.start()
    robot = ObservationClient(net.client())
    reply = robot.infer(StepId("robot-0", "w-1", "e", 0), "t", {"state": np.ones(1)}, 10.0)
    worker.join(5)
    assert reply.id.worker == "w-1" and robot.counters["mismatched_replies"] == 2


def test_feed_over_two_homes_answers_each(net):
    _home(net, "a", "home-a")
    _home(net, "b", "home-b")
    robots = [ObservationClient(net.client(name, expected=f"home-{name}")) for name in "ab"]
    feed = InferenceFeed([net.client(name, station="gpu-0", expected=f"home-{name}") for name in "ab"])
    worker = threading.Thread(target=_act, args=(feed, 4), kwargs={"target": 1, "timeout_s": 0.0, "wait_s": 5.0})
    worker.start()
    for step in range(2):
        for number, robot in enumerate(robots):
            id = StepId(f"robot-{number}", "w", "e", step)
            assert robot.infer(id, "t", {"state": np.ones(1)}, 5.0).id == id
    worker.join(5)
    assert not worker.is_alive()


def test_feed_survives_the_loss_of_its_home(net):
    home = Home()
    server = net.server(home.handlers(), tick=home.tick)
    feed = InferenceFeed([net.client(station="gpu-0")])
    assert feed.fetch(1, 0.0, 0.05) == []
    server.close()
    fresh = Home()
    net.server(fresh.handlers(), tick=fresh.tick)
    net.client().call("put", _head(), deadline_s=5)
    assert [request.id.step for request in feed.fetch(1, 0.0, 5.0)] == [0]
