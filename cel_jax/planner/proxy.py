"""The model-call boundary over HTTP: the chat-completions interface, one path for each episode.

    with Proxy(recorder) as proxy:
        OpenAI(base_url=f"{proxy.url}/episodes/NAME/v1", api_key="any").chat.completions.create(...)

POST /episodes/<name>/v1/chat/completions, streaming or not. Errors have the interface's form.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cel_jax.planner.chat import CALL, CALL_OPEN
from cel_jax.planner.recorder import PlannerCallError, Recorder, Reply, completion_body
from cel_jax.planner.records import CallRecord

BODY_LIMIT_BYTES = 8 * 1024 * 1024
READ_DEADLINE_S = 30.0
_PATH = re.compile(r"/episodes/([A-Za-z0-9][A-Za-z0-9._-]{0,199})/v1/chat/completions")


class Proxy:
    """Serves until closed. host: this machine alone unless told otherwise. port 0: a free one."""

    def __init__(self, recorder: Recorder, host: str = "127.0.0.1", port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"recorder": recorder})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="planner-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(READ_DEADLINE_S)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    recorder: Recorder
    protocol_version = "HTTP/1.1"
    timeout = READ_DEADLINE_S
    disable_nagle_algorithm = True  # on a kept connection every answer would wait 40 ms for the peer's delayed ACK

    def do_POST(self) -> None:
        try:
            episode, request = self._episode(), self._request()
            record, reply = self.recorder.call(episode, request)
        except PlannerCallError as error:
            return self._refuse(error)
        if request.get("stream"):
            return self._stream(events(record, reply, self.recorder.backend.pieces(reply)))
        self._send(200, completion_body(record, reply))

    def _episode(self) -> str:
        match = _PATH.fullmatch(self.path)
        if match is None:
            raise PlannerCallError(
                f"no such path {self.path[:80]!r}; post to /episodes/<name>/v1/chat/completions", 404
            )
        return match.group(1)

    def _request(self) -> dict[str, Any]:
        """The body. Raises PlannerCallError for one that is missing, too large or no JSON object with messages."""
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > BODY_LIMIT_BYTES:
            raise PlannerCallError(
                f"Content-Length {size!r}; expected at most {BODY_LIMIT_BYTES} bytes", 413, "invalid_request_error"
            )
        try:
            request = json.loads(self.rfile.read(int(size)))
            if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
                raise ValueError("expected an object with a list of messages")
        except (ValueError, RecursionError) as error:
            raise PlannerCallError(f"the body cannot be read: {error}", 400, "invalid_request_error") from error
        return request

    def _refuse(self, error: PlannerCallError) -> None:
        self.close_connection = True  # the body may be unread
        self._send(error.status, {"error": {"message": str(error), "type": error.kind, "code": error.kind}})

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, chunks: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the records tell more than a line for each request."""


def events(record: CallRecord, reply: Reply, pieces: list[str]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed answer. Each carries the ids and log-probabilities of the text in it."""
    whole = completion_body(record, reply)
    head = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    texts = _without_calls(pieces) if reply.message.get("tool_calls") else pieces
    for position, (text, token, logprob) in enumerate(zip(texts, reply.response_ids, reply.logprobs, strict=True)):
        delta: dict[str, Any] = {"content": text} | ({"role": "assistant"} if position == 0 else {})
        yield head | {"choices": [_choice(delta, None, [token], [logprob])]}
    calls = [{"index": i, **call} for i, call in enumerate(reply.message.get("tool_calls") or ())]
    delta = {"tool_calls": calls} if calls else {}  # whole, at the end: a call is of use only when it can be read
    last = head | {"choices": [_choice(delta, reply.finish_reason, [], [])], "usage": whole["usage"]}
    yield last | {"prompt_token_ids": whole["prompt_token_ids"]}


def _without_calls(pieces: list[str]) -> list[str]:
    """The same pieces without the text of the calls, which are sent apart."""
    text, shown, found = "", "", []
    for piece in pieces:
        text += piece
        visible = CALL.sub("", text).split(CALL_OPEN)[0]
        found.append(visible[len(shown) :])
        shown = visible
    return found


def _choice(delta: Mapping[str, Any], finish: str | None, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": ids, "token_logprobs": logprobs}
