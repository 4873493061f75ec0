"""What a planner's call costs beyond drawing the response: the proxy over HTTP, with an engine that answers at once.

    python -m bench.planner_boundary [--quick]

A call is timed from the client's `request` to the parsed answer, on a kept connection, so that the client's own part is
in it. Beside it: the same bytes from a server of the standard library that does nothing but send them, and the recorder
alone, called in this process. Responses have 40 tokens, prompts what a packing episode's turn has.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from bench import report
from bench.report import Figure
from cel_jax.planner.chat import ChatTemplate
from cel_jax.planner.demonstrations import corpus, demonstrate, training_specs
from cel_jax.planner.proxy import Proxy
from cel_jax.planner.recorder import LocalBackend, Recorder
from cel_jax.planner.records import CallRecord, RecordLog, Sampling
from cel_jax.planner.sampler import Generation
from cel_jax.planner.tabletop.text_world import TextTabletop
from cel_jax.planner.tool_harness import Limits
from cel_jax.planner.words import WordTokenizer, make_vocabulary

NAME, RESPONSE_TOKENS, CLIENTS = "planner_boundary", 40, 8
Call = Callable[[], Any]


class AtOnce:
    """An engine without a model: RESPONSE_TOKENS tokens, no time."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self._ids = (*range(1, RESPONSE_TOKENS), tokenizer.end_id)

    def check_length(self, prompt: Sequence[int]) -> None:
        pass

    def generate(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Generation:
        return Generation(self._ids, (-0.5,) * len(self._ids), "stop")


def main(argv: Sequence[str] | None = None) -> int:
    flags = report.parser(__doc__).parse_args(argv)
    report.write(NAME, measure(200 if flags.quick else 4000), report.command(NAME, argv))
    return 0


def measure(calls: int) -> list[Figure]:
    turn, tokenizer = _turn()
    request = {"messages": list(turn.messages), "tools": list(turn.tools)}
    recorder = Recorder(LocalBackend(ChatTemplate(tokenizer), AtOnce(tokenizer)), RecordLog(), 0, Sampling(), 0)
    alone = median_ms(lambda: recorder.call("alone", request), calls)
    with Proxy(recorder) as proxy:
        one = median_ms(poster(proxy.url, "/episodes/one/v1/chat/completions", request), calls)
        body = poster(proxy.url, "/episodes/size/v1/chat/completions", request)()
        many = side_by_side(lambda i: poster(proxy.url, f"/episodes/m{i}/v1/chat/completions", request), calls)
    bare = median_ms_of_bytes(body, request, calls)
    return [
        Figure("a call through the proxy, median", one, "ms", "<= 2", "the same bytes from a bare server", bare),
        Figure(f"the same, {CLIENTS} clients at once", many, "ms"),
        Figure("the recorder in the same process, median", alone, "ms"),
    ]


def _turn() -> tuple[CallRecord, WordTokenizer]:
    """The longest call of one demonstrated episode, and a vocabulary that knows it."""
    (spec,) = training_specs(TextTabletop().tasks(), 1, 0)
    shown = demonstrate(TextTabletop(), spec, Limits(24, 60.0), 1, 0)
    longest = max(shown.records, key=lambda record: len(json.dumps(record.messages)))
    return longest, WordTokenizer(make_vocabulary(corpus([shown])))


def poster(url: str, path: str, request: dict[str, Any]) -> Callable[[], bytes]:
    """One client with a connection of its own; each call posts and parses."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)

    def post() -> bytes:
        connection.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {body[:200]!r}")
        json.loads(body)
        return body

    return post


def median_ms(call: Call, calls: int) -> float:
    """After a tenth of the calls as warm-up."""
    return float(np.median(times_ms(call, calls)))


def times_ms(call: Call, calls: int) -> list[float]:
    found = []
    for _ in range(calls + calls // 10):
        begin = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - begin))
    return found[calls // 10 :]


def side_by_side(make: Callable[[int], Call], calls: int) -> float:
    """The median over CLIENTS threads."""
    found: list[float] = []
    work = [
        threading.Thread(target=lambda i=i: found.extend(times_ms(make(i), calls // CLIENTS))) for i in range(CLIENTS)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    return float(np.median(found))


def median_ms_of_bytes(body: bytes, request: dict[str, Any], calls: int) -> float:
    """The floor: a server that reads the request and sends `body`."""

    class Bare(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bare)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return median_ms(poster(f"http://127.0.0.1:{server.server_address[1]}", "/", request), calls)
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    raise SystemExit(main())
