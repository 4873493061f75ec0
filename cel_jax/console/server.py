"""The page's HTTP server: plain files and a small JSON interface over the desk. It holds nothing that could be lost.

Every request is bounded: threads, bytes, seconds. A browser that another site's page steers is refused by `Host`,
`Origin` and `Sec-Fetch-Site`; beyond the loopback address every request of the interface needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Protocol

from cel_jax.bus.errors import AccessRefused, BusError, DeadlineExceeded, RemoteError

MAX_BODY_BYTES, MAX_THREADS, REQUEST_S = 4096, 32, 10.0
FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
REFUSALS = {"unknown_episode": 404, "label_refused": 409, "station_refused": 409, "wire": 400, "access_refused": 403}
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'",
}


class Desk(Protocol):
    """What the page asks for; `cel_jax.console.desk.DeskClient` is one."""

    def tiles(self) -> dict[str, Any]: ...

    def label(self, episode: str, outcome: str, author: str, reason: str = "") -> dict[str, Any]: ...

    def undo(self, episode: str, author: str) -> dict[str, Any]: ...

    def start(self, station: str, author: str) -> dict[str, Any]: ...

    def stop(self, stations: list[str], author: str) -> dict[str, Any]: ...

    def release(self, stations: list[str], author: str) -> dict[str, Any]: ...


# path -> (fields that must be there, fields that may be there); all are text, but `stations`, a list of names.
FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "label": (frozenset({"episode", "outcome", "author"}), frozenset({"reason"})),
    "undo": (frozenset({"episode", "author"}), frozenset()),
    "start": (frozenset({"station", "author"}), frozenset()),
    "stop": (frozenset({"stations", "author"}), frozenset()),
    "release": (frozenset({"stations", "author"}), frozenset()),
}


class Refused(Exception):
    """An HTTP request that is not answered; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PageServer(ThreadingHTTPServer):
    """Serves until `shutdown`. Raises ValueError for an address beyond this machine without a token."""

    daemon_threads, request_queue_size = True, MAX_THREADS

    def __init__(self, host: str, port: int, desk: Desk, run: str, token: str = "") -> None:
        if not is_loopback(host) and not token:
            raise ValueError(f"host {host}: others would reach this page; give it a token, or serve on 127.0.0.1")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.desk, self.run, self.token, self.is_local = desk, run, token, is_loopback(host)
        self.orders: dict[str, Callable[..., dict[str, Any]]] = {
            "label": desk.label,
            "undo": desk.undo,
            "start": desk.start,
            "stop": desk.stop,
            "release": desk.release,
        }
        self._slots = threading.BoundedSemaphore(MAX_THREADS)
        super().__init__((host, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Without a free thread the connection is closed: nothing queues up here."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nothing to tell."""


class Handler(BaseHTTPRequestHandler):
    """One request; the connection is closed after it."""

    server: PageServer
    timeout = REQUEST_S
    server_version, sys_version = "cel_jax", ""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_HEAD(self) -> None:
        self._answer(self._no_method)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the desk keeps who did what."""

    # -- what is asked -----------------------------------------------------------------------------------------------

    def _get(self) -> tuple[bytes, str]:
        if self.path in FILES:
            name, kind = FILES[self.path]
            return resources.files("cel_jax.console").joinpath(name).read_bytes(), f"{kind}; charset=utf-8"
        if self.path.removeprefix("/api/") in FIELDS:
            raise Refused(405, f"{self.path}: POST it")
        if self.path != "/api/tiles":
            raise Refused(404, f"{self.path[:80]}: there is /, /api/tiles and POST /api/{{{','.join(FIELDS)}}}")
        self._check_token()
        return _json({"run": self.server.run, **self.server.desk.tiles()})

    def _post(self) -> tuple[bytes, str]:
        name = self.path.removeprefix("/api/")
        if self.path in FILES or self.path == "/api/tiles":
            raise Refused(405, f"{self.path}: GET it")
        if name == self.path or name not in FIELDS:
            raise Refused(404, f"{self.path[:80]}: there is POST /api/{{{','.join(FIELDS)}}}")
        self._check_token()
        values = check_fields(name, self._body())
        return _json(self.server.orders[name](**values))

    def _no_method(self) -> tuple[bytes, str]:
        raise Refused(405, f"{self.command}: GET and POST are served")

    def _body(self) -> object:
        if self.headers.get_content_type() != "application/json":  # what a form of another site cannot send
            raise Refused(415, "expected Content-Type: application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refused(411, "expected a Content-Length")
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            raise Refused(413, f"expected at most {MAX_BODY_BYTES} bytes, got {length[:20]}")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"not JSON: {error}"[:200]) from error

    # -- who asks ----------------------------------------------------------------------------------------------------

    def _check_origin(self) -> None:
        """A foreign page may make this browser send requests; its name stands in them. Raises Refused."""
        host = self.headers.get("Host", "")
        if self.server.is_local and not is_loopback(_host_name(host)):
            raise Refused(403, f"host {host[:80]!r}: this page answers on this machine alone")  # a rebound DNS name
        origin = self.headers.get("Origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, f"origin {origin[:80]!r}: requests of other sites are refused")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Refused(403, "requests of other sites are refused")

    def _check_token(self) -> None:
        """Raises Refused; compares in constant time."""
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.token and not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise Refused(401, "wrong token; open the page's address with #token=...")

    # -- the answer --------------------------------------------------------------------------------------------------

    def _answer(self, make: Callable[[], tuple[bytes, str]]) -> None:
        status = 200
        try:
            if self.path != "/":  # a link from elsewhere may open the page itself, which shows and does nothing
                self._check_origin()
            body, kind = make()
        except (Refused, BusError) as error:
            status, (body, kind) = status_of(error), _json({"error": _words(error)})
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def check_fields(name: str, values: object) -> Mapping[str, Any]:
    """The body of one order. Raises Refused naming what is missing or too much."""
    needed, more = FIELDS[name]
    if not isinstance(values, dict):
        raise Refused(400, f"{name}: expected a JSON object")
    missing, unknown = sorted(needed - set(values)), sorted(set(values) - needed - more)
    if missing or unknown:
        raise Refused(400, f"{name}: missing {missing}, unknown {unknown}"[:200])
    for key, value in values.items():
        whole = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not (whole if key == "stations" else isinstance(value, str)):
            raise Refused(400, f"{name}: {key} is {'a list of names' if key == 'stations' else 'text'}")
    return values


def status_of(error: Refused | BusError) -> int:
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, RemoteError):
        return REFUSALS.get(error.remote_kind, 502)
    if isinstance(error, DeadlineExceeded):
        return 504
    return 403 if isinstance(error, AccessRefused) else 503


def _words(error: Exception) -> str:
    if isinstance(error, RemoteError):
        return error.remote_message
    if isinstance(error, DeadlineExceeded):
        return f"no answer in time; look before you try again: {error}"
    return str(error)


def _host_name(host: str) -> str:
    """`name` of `name:port` and `[v6]:port`."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _json(values: Mapping[str, Any]) -> tuple[bytes, str]:
    return json.dumps(values, allow_nan=False).encode(), "application/json"
