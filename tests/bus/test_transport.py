"""Server and client over real sockets: many calls at once, deadlines, replacement, identities, bounds."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import threading
import time

import pytest
import zmq

from cel_jax.bus import errors
from cel_jax.bus.identity import Identity, Registry
from cel_jax.bus.message import decode_request, encode_reply
from cel_jax.bus.transport import Deferred, Limits, Reply


def _echo(request):
    return Reply(request.header, request.buffers)


def _path(endpoint: str) -> pathlib.Path:
    return pathlib.Path(endpoint[len("ipc://") :])


def _reaches(counters, name: str, count: int, within_s: float = 5.0) -> bool:
    ends_s, idle = time.monotonic() + within_s, threading.Event()
    while counters[name] < count and time.monotonic() < ends_s:
        idle.wait(0.005)
    return counters[name] == count


def test_calls_of_many_threads_get_their_own_replies(net):
    net.server({"echo": _echo})
    client = net.client()

    def ask(number):
        reply = client.call("echo", {"n": number}, [bytes([number]) * number])
        return reply.header["n"] == number and bytes(reply.buffers[0]) == bytes([number]) * number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(200)))


def test_deferred_answers_arrive_in_any_order(net):
    held: list[Deferred] = []
    both = threading.Event()

    def hold(_):
        held.append(Deferred())
        if len(held) == 2:
            both.set()
        return held[-1]

    net.server({"hold": hold})
    first, second = (net.client().submit("hold") for _ in range(2))
    assert both.wait(5)
    assert held[1].reply(Reply({"n": 1})) and held[0].reply(Reply({"n": 0}))
    assert not held[0].reply(Reply({"n": 2}))
    assert {first.result(5).header["n"], second.result(5).header["n"]} == {0, 1}


def test_deadline_names_operation_endpoint_and_station(net):
    server = net.server({"hold": lambda _: Deferred()})
    with pytest.raises(errors.DeadlineExceeded) as caught:
        net.client().call("hold", deadline_s=0.1)
    for word in ("hold", net.endpoint(), "'home'"):
        assert word in str(caught.value)
    assert _reaches(server.counters, "expired_calls", 1)


def test_call_waits_for_a_server_that_comes_later_and_for_its_replacement(net):
    client = net.client()
    future = client.submit("echo", {"n": 1}, deadline_s=10)
    server = net.server({"echo": _echo})
    assert future.result(10).header == {"n": 1}
    server.close()
    futures = [client.submit("echo", {"n": n}, deadline_s=10) for n in range(20)]
    order: list[int] = []
    net.server({"echo": lambda request: order.append(request.header["n"]) or _echo(request)})
    assert [future.result(10).header["n"] for future in futures] == list(range(20))
    assert order == list(range(20))


def test_a_call_whose_deadline_passed_unsent_is_never_executed(net):
    client = net.client()
    with pytest.raises(errors.DeadlineExceeded, match="never sent"):
        client.call("echo", {"n": 1}, deadline_s=0.1)
    ran: list[int] = []
    net.server({"echo": lambda request: ran.append(request.header["n"]) or _echo(request)})
    assert client.call("echo", {"n": 2}, deadline_s=10).header == {"n": 2}
    assert ran == [2]


def test_the_server_learns_how_long_its_caller_still_waits(net):
    client = net.client()
    future = client.submit("left", deadline_s=10)
    with pytest.raises(errors.DeadlineExceeded):
        client.call("left", deadline_s=0.3)  # meanwhile the first call waits
    net.server({"left": lambda request: Reply({"s": request.deadline_s})})
    assert 5.0 < future.result(10).header["s"] <= 9.7


def test_replies_that_do_not_match_are_dropped(net):
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger = 0
    net.endpoint()
    router.bind(net.endpoint())
    client = net.client()
    future = client.submit("echo", deadline_s=20)
    peer, head = router.recv_multipart()
    call = decode_request([head], Limits()).call
    sender = Identity("home", "w-h", "home")
    stale = [
        Reply({"n": 1}, sender=sender, call=call + 1),
        Reply({"n": 2}, sender=sender, call=call, epoch=1),
        Reply({"n": 3}, sender=Identity("other", "w-h", "home"), call=call),
    ]
    for reply in [*stale, Reply({"n": 4}, sender=sender, call=call), Reply({"n": 5}, sender=sender, call=call)]:
        router.send_multipart([peer, *encode_reply(reply)])
    assert future.result(10).header == {"n": 4}
    assert _reaches(client.counters, "stale_replies", 3) and client.counters["replies_of_other_station"] == 1
    router.close()


def test_a_lost_connection_ends_calls_on_it_at_once(net):
    failures = []
    taken = threading.Event()
    server = net.server({"hold": lambda _: taken.set() or Deferred()})
    client = net.client(on_failure=failures.append)
    future = client.submit("hold", deadline_s=60)
    assert taken.wait(5)
    server.close()
    with pytest.raises(errors.PeerLost):
        future.result(5)
    assert [failure.kind for failure in failures] == ["peer_lost"] and failures[0].station == "home"


def test_answer_to_a_vanished_client_is_counted_and_told_to_its_handler(net):
    told, held = threading.Event(), []

    def hold(_):
        held.append(Deferred(on_undelivered=told.set))
        return held[-1]

    server = net.server({"hold": hold, "echo": _echo})
    client = net.client(max_in_flight=300)
    for _ in range(200):
        client.submit("hold", deadline_s=60)
    client.call("echo", deadline_s=5)
    client.close()
    # the first few may still go into the connection that is closing
    assert any(deferred.reply(Reply()) and told.wait(0.02) for deferred in held)
    assert server.counters["undelivered"] >= 1


def test_close_and_epoch_end_every_wait(net):
    taken = threading.Event()
    server = net.server({"hold": lambda _: taken.set() or Deferred(), "echo": _echo})
    client = net.client()
    future = client.submit("hold", deadline_s=60)
    assert taken.wait(5)
    client.advance_epoch(1)
    with pytest.raises(errors.EpochAdvanced):
        future.result(5)
    server.advance_epoch(2)
    assert client.call("echo", deadline_s=5).header == {} and client.epoch == 2 and client.counters["replayed"] == 1
    client.advance_epoch(1)
    assert client.epoch == 2
    future = client.submit("hold", deadline_s=60)
    client.close()
    with pytest.raises(errors.ClientClosed):
        future.result(5)
    with pytest.raises(errors.ClientClosed):
        client.submit("echo")


def test_server_of_another_station_does_not_execute_and_is_not_believed(net):
    ran = []
    net.server({"echo": lambda request: ran.append(1) or _echo(request)}, station="impostor")
    client = net.client(expected="home")
    with pytest.raises(errors.DeadlineExceeded, match="impostor"):
        client.call("echo", deadline_s=0.5)
    assert not ran and client.counters["replies_of_other_station"] == 1


def test_dead_worker_is_refused(net):
    registry = Registry()
    net.server({"echo": _echo}, registry=registry)
    client = net.client(worker="w-old")
    assert client.call("echo", deadline_s=5).header == {}
    registry.retire("w-old")
    with pytest.raises(errors.RemoteError) as caught:
        client.call("echo", deadline_s=5)
    assert caught.value.remote_kind == "stale_identity"


def test_handler_error_reaches_the_caller_and_the_server_lives(net):
    failures = []
    server = net.server({"bad": lambda _: 1 // 0, "echo": _echo}, on_failure=failures.append)
    client = net.client()
    with pytest.raises(errors.RemoteError, match="ZeroDivisionError"):
        client.call("bad", deadline_s=5)
    assert client.call("echo", {"n": 1}, deadline_s=5).header == {"n": 1}
    assert server.counters["handler_failed"] == 1 and failures[0].kind == "handler_failed"


def test_malformed_messages_are_counted_and_the_server_lives(net):
    server = net.server({"echo": _echo}, limits=Limits(total_bytes=10_000))
    raw = zmq.Context.instance().socket(zmq.DEALER)
    raw.linger = 0
    raw.connect(net.endpoint())
    for frames in ([b""], [b"\xc1"], [b"\x80", b"x"], [b"\x91" * 600], [b"x" * 9000, b"y" * 9000]):
        raw.send_multipart(frames)
    raw.send(b"z" * 20_000)  # libzmq drops this peer
    assert _reaches(server.counters, "malformed", 5)
    assert net.client().call("echo", {"n": 1}, deadline_s=5).header == {"n": 1}
    raw.close()
    with pytest.raises(errors.WireError, match="10000"):
        net.client(limits=Limits(total_bytes=10_000)).submit("echo", {}, [b"x" * 10_000])


def test_calls_in_flight_are_bounded_on_both_sides(net):
    net.server({"hold": lambda _: Deferred()}, max_deferred=2)
    client = net.client(max_in_flight=3)
    futures = [client.submit("hold", deadline_s=60) for _ in range(3)]
    with pytest.raises(errors.BoundReached, match="3 calls"):
        client.submit("hold")
    with pytest.raises(errors.RemoteError) as caught:
        futures[2].result(5)
    assert caught.value.remote_kind == "bound"


def test_bind_refuses_a_living_server_and_replaces_a_stale_file(net):
    server = net.server({})
    with pytest.raises(errors.BindError, match="living process"):
        net.server({})
    server.close()
    assert _path(net.endpoint()).exists()  # a killed server leaves its file as well
    net.server({"echo": _echo})
    assert net.client().call("echo", deadline_s=5).header == {}


def test_ipc_file_and_folder_are_private(net):
    net.server({})
    path = _path(net.endpoint())
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    os.chmod(path.parent, 0o755)
    with pytest.raises(errors.BindError, match="chmod 700"):
        net.server({}, name="b")


def test_long_ipc_path_is_named(net):
    with pytest.raises(errors.BindError, match="107"):
        net.server({}, name="x" * 120)


def test_tcp_without_keys_is_refused(net):
    with pytest.raises(errors.BindError, match="CURVE"):
        from cel_jax.bus.transport import Server

        Server("tcp://127.0.0.1:*", net.client().identity, {})
