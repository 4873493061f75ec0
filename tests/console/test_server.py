"""The page's HTTP server against bad requests, foreign sites and a desk that does not answer."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cel_jax.bus.errors import BusError, DeadlineExceeded, PeerLost, RemoteError
from cel_jax.console import server as page_server
from cel_jax.console.server import PageServer
from tests.console.operator_script import ask

TOKEN = "a-token-of-24-characters"
LABEL = {"episode": "e-1", "outcome": "success", "author": "ann"}


class FakeDesk:
    """Notes what it is asked; raises `error` where one is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error: BusError | None = None

    def tiles(self) -> dict[str, Any]:
        return {"stations": [], "episodes": [], "phase": "running"}

    def __getattr__(self, name: str) -> Any:
        def order(**values: Any) -> dict[str, Any]:
            self.asked.append((name, values))
            if self.error is not None:
                raise self.error
            return {"done": name}

        return order


def serve(desk: FakeDesk, token: str = "", host: str = "127.0.0.1") -> PageServer:
    made = PageServer(host, 0, desk, "main", token)  # type: ignore[arg-type]
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    return made


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def port(desk: FakeDesk) -> Iterator[int]:
    made = serve(desk)
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


def test_orders_reach_the_desk_as_they_were_typed(port: int, desk: FakeDesk) -> None:
    assert ask(port, "/api/label", LABEL) == (200, {"done": "label"})
    assert ask(port, "/api/stop", {"stations": [], "author": "ann"}) == (200, {"done": "stop"})
    assert desk.asked == [("label", LABEL), ("stop", {"stations": [], "author": "ann"})]
    assert ask(port, "/api/tiles")[1]["run"] == "main"


@pytest.mark.parametrize(
    "path,body,method,status",
    [
        ("/api/label", {"episode": "e"}, "", 400),  # fields are missing
        ("/api/label", {**LABEL, "more": "x"}, "", 400),
        ("/api/label", {**LABEL, "episode": 7}, "", 400),
        ("/api/stop", {"stations": "robot-00", "author": "ann"}, "", 400),
        ("/api/label", [1], "", 400),
        ("/api/label", b"{", "", 400),
        ("/api/label", b"[" * 4000, "", 400),
        ("/api/label", b"\xff\xfe", "", 400),
        ("/api/label", b"x" * 4097, "", 413),
        ("/api/label", None, "GET", 405),
        ("/api/label", LABEL, "PUT", 405),
        ("/api/label", LABEL, "DELETE", 405),
        ("/api/label", None, "OPTIONS", 405),
        ("/api/tiles", {}, "POST", 405),
        ("/", {}, "POST", 405),
        ("/api/nothing", LABEL, "", 404),
        ("/api/__init__", LABEL, "", 404),
        ("/../server.py", None, "", 404),
        ("/server.py", None, "", 404),
    ],
)
def test_bad_requests_are_refused_and_reach_nobody(
    port: int, desk: FakeDesk, path: str, body: Any, method: str, status: int
) -> None:
    answered, said = ask(port, path, body, method=method)
    assert answered == status and said["error"]
    assert not desk.asked


def test_headers_that_do_not_fit_are_refused(port: int, desk: FakeDesk) -> None:
    assert ask(port, "/api/label", LABEL, {"Content-Type": "text/plain"})[0] == 415
    assert ask(port, "/api/label", LABEL, {"Content-Length": "1e3"})[0] == 411
    assert ask(port, "/api/label", LABEL, {"Content-Length": "99999999999999"})[0] == 413
    assert not desk.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "evil.example"},  # its name was rebound to this machine
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_are_refused(port: int, desk: FakeDesk, headers: dict[str, str]) -> None:
    for path, body in (("/api/label", LABEL), ("/api/tiles", None)):
        status, said = ask(port, path, body, headers)
        assert status == 403 and said["error"]
    assert not desk.asked
    same = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(port, "/api/label", LABEL, same)[0] == 200


def test_the_token_is_asked_of_everybody(desk: FakeDesk) -> None:
    with pytest.raises(ValueError, match="token"):
        PageServer("0.0.0.0", 0, desk, "main")  # type: ignore[arg-type]
    made = serve(desk, TOKEN, "0.0.0.0")
    port = made.server_address[1]
    try:
        for given in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer "}, {"Authorization": "ü"}):
            assert (
                ask(port, "/api/label", LABEL, {k: v.encode("latin-1").decode("latin-1") for k, v in given.items()})[0]
                == 401
            )
            assert ask(port, "/api/tiles", None, given)[0] == 401
        assert not desk.asked
        assert ask(port, "/api/label", LABEL, {"Authorization": f"Bearer {TOKEN}"})[0] == 200
    finally:
        made.shutdown()
        made.server_close()


@pytest.mark.parametrize(
    "error,status",
    [
        (RemoteError("unknown_episode", "episode 'e-1': unknown", "label", "ipc://x", "desk"), 404),
        (RemoteError("label_refused", "episode e-1 is already labelled", "label", "ipc://x", "desk"), 409),
        (RemoteError("access_refused", "role", "label", "ipc://x", "desk"), 403),
        (RemoteError("handler_failed", "e-1", "label", "ipc://x", "desk"), 502),
        (DeadlineExceeded("e-1"), 504),
        (PeerLost("e-1"), 503),
    ],
)
def test_what_the_desk_refuses_is_said(port: int, desk: FakeDesk, error: BusError, status: int) -> None:
    desk.error = error
    answered, said = ask(port, "/api/label", LABEL)
    assert answered == status and (("e-1" in said["error"]) or status == 403)


def test_the_page_and_its_script_are_in_the_package(port: int) -> None:
    for path, words in (("/", b"STOP ALL"), ("/page.js", b"/api/tiles")):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200 and words in body
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        connection.close()


def test_slow_clients_hold_neither_threads_nor_others(
    port: int, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server.Handler, "timeout", 0.5)
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(page_server.MAX_THREADS + 8)]
    try:
        ends = threading.Event()
        for _ in range(100):
            try:
                assert ask(port, "/api/label", LABEL)[0] == 200
                return
            except (ConnectionError, http.client.HTTPException):
                ends.wait(0.1)
        pytest.fail("the server never came back")
    finally:
        for one in idle:
            one.close()
