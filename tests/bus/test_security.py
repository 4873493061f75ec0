"""CURVE over TCP: known keys pass, unknown ones are refused at once, secrets stay secret."""

from __future__ import annotations

import os
import threading
import time

import pytest

from cel_jax.bus import errors
from cel_jax.bus.identity import Identity
from cel_jax.bus.security import (
    AllowList,
    ClientCurve,
    ServerCurve,
    generate_keys,
    load_allow_list,
    load_keys,
    load_public,
)
from cel_jax.bus.transport import Client, Reply, Server

HOME, ROBOT = Identity("home", "w-h", "home"), Identity("robot-0", "w-r", "environment")


@pytest.fixture
def guarded(tmp_path):
    keys = generate_keys(tmp_path / "server", "home")
    allowed = AllowList()
    with Server("tcp://127.0.0.1:*", HOME, {"echo": lambda r: Reply(r.header)}, ServerCurve(keys, allowed)) as server:
        yield server, allowed, keys.public


def test_known_key_passes_and_unknown_key_is_refused(guarded, tmp_path):
    server, allowed, public = guarded
    friend, stranger = generate_keys(tmp_path, "friend"), generate_keys(tmp_path, "stranger")
    allowed.add("friend", friend.public)
    with Client(server.endpoint, ROBOT, "home", ClientCurve(friend, public)) as client:
        assert client.call("echo", {"n": 1}, deadline_s=5).header == {"n": 1}
    with Client(server.endpoint, ROBOT, "home", ClientCurve(stranger, public)) as client:
        with pytest.raises(errors.AccessRefused, match="key"):
            client.call("echo", deadline_s=5)
    assert server.counters["refused_keys"] >= 1


def test_a_refused_key_is_refused_at_any_time_and_passes_once_it_is_allowed(guarded, tmp_path):
    server, allowed, public = guarded
    keys = generate_keys(tmp_path, "late")
    with Client(server.endpoint, ROBOT, "home", ClientCurve(keys, public)) as client:
        ends_s, idle = time.monotonic() + 5, threading.Event()
        while not client.counters["refused_keys"] and time.monotonic() < ends_s:
            idle.wait(0.005)
        with pytest.raises(errors.AccessRefused):  # the refusal came before the call
            client.call("echo", deadline_s=5)
        allowed.add("late", keys.public)
        while not client.connected and time.monotonic() < ends_s:
            idle.wait(0.005)
        assert client.call("echo", {"n": 1}, deadline_s=5).header == {"n": 1}


def test_client_does_not_talk_to_a_server_with_another_key(guarded, tmp_path):
    server, allowed, _ = guarded
    friend, other = generate_keys(tmp_path, "friend"), generate_keys(tmp_path, "other")
    allowed.add("friend", friend.public)
    with Client(server.endpoint, ROBOT, "home", ClientCurve(friend, other.public)) as client:
        with pytest.raises(errors.DeadlineExceeded, match="public key"):
            client.call("echo", deadline_s=0.5)
    assert server.counters["requests"] == 0


def test_key_files_are_private_and_never_overwritten(tmp_path):
    keys = generate_keys(tmp_path / "keys", "robot-0")
    secret = tmp_path / "keys" / "robot-0.secret"
    assert secret.stat().st_mode & 0o777 == 0o600 and secret.parent.stat().st_mode & 0o777 == 0o700
    assert load_keys(tmp_path / "keys", "robot-0") == keys and load_public(tmp_path / "keys", "robot-0") == keys.public
    assert keys.secret.decode() not in repr(ClientCurve(keys, keys.public))
    with pytest.raises(FileExistsError):
        generate_keys(tmp_path / "keys", "robot-0")
    os.chmod(secret, 0o644)
    with pytest.raises(PermissionError, match="0600"):
        load_keys(tmp_path / "keys", "robot-0")
    with pytest.raises(ValueError, match="key name"):
        generate_keys(tmp_path, "../x")


def test_allow_list_of_a_folder(tmp_path):
    keys = generate_keys(tmp_path, "robot-0")
    allowed = load_allow_list(tmp_path)
    assert allowed.name(keys.public) == "robot-0" and allowed.name(b"x" * 40) is None
    allowed.remove(keys.public)
    assert allowed.name(keys.public) is None


@pytest.fixture
def by_role(tmp_path):
    """A home that knows roles: robots may ask, inference may answer."""
    keys = generate_keys(tmp_path, "server")
    for name in ("environment", "inference", "environment.lab2"):
        generate_keys(tmp_path, name)
    handlers = {op: lambda request: Reply(request.header) for op in ("request", "answer", "retire")}
    roles = {"request": frozenset({"environment"}), "answer": frozenset({"inference"})}
    curve = ServerCurve(keys, load_allow_list(tmp_path), roles)
    with Server("tcp://127.0.0.1:*", HOME, handlers, curve) as server:
        yield server, tmp_path


def ask(server, folder, key, identity, op):
    curve = ClientCurve(load_keys(folder, key), load_public(folder, "server"))
    with Client(server.endpoint, identity, "home", curve) as client:
        return client.call(op, {"n": 1}, deadline_s=5).header


def test_a_role_gets_what_is_its_own(by_role):
    server, folder = by_role
    assert ask(server, folder, "environment", ROBOT, "request") == {"n": 1}
    assert ask(server, folder, "inference", Identity("gpu-0", "w-i", "inference"), "answer") == {"n": 1}
    assert ask(server, folder, "environment.lab2", Identity("lab2-arm-0", "w-l", "environment"), "request") == {"n": 1}


@pytest.mark.parametrize(
    "key,identity,op",
    [
        ("environment", ROBOT, "answer"),  # another role's operation
        ("environment", ROBOT, "retire"),  # nobody's operation
        ("environment", Identity("gpu-0", "w", "inference"), "answer"),  # claims another role
        ("environment.lab2", ROBOT, "request"),  # claims a station of another node
        ("environment.lab2", Identity("lab22-arm", "w", "environment"), "request"),
        ("server", HOME, "request"),  # the server's own key is no worker's
    ],
)
def test_wrong_roles_and_claimed_stations_are_refused_and_counted(by_role, key, identity, op):
    server, folder = by_role
    with pytest.raises(errors.RemoteError, match=r"may not") as refused:
        ask(server, folder, key, identity, op)
    assert refused.value.remote_kind == "access_refused"
    assert server.counters["refused_access_refused"] == 1
    assert ask(server, folder, "environment", ROBOT, "request") == {"n": 1}, "nobody else is harmed"


def test_a_newly_invited_key_passes_without_a_restart(by_role):
    server, folder = by_role
    generate_keys(folder, "environment.lab3")
    station = Identity("lab3-arm-0", "w-3", "environment")
    curve = ClientCurve(load_keys(folder, "environment.lab3"), load_public(folder, "server"))
    ends_s = time.monotonic() + 10
    with Client(server.endpoint, station, "home", curve) as client:
        while time.monotonic() < ends_s:
            try:
                assert client.call("request", {"n": 1}, deadline_s=5).header == {"n": 1}
                return
            except errors.AccessRefused:
                threading.Event().wait(0.05)
    pytest.fail("the new key was never let in")
