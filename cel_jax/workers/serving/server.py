"""The websocket: metadata on connect, then observation in, actions out; /healthz for load balancers."""

from __future__ import annotations

import asyncio
import http
import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

import websockets
from websockets.asyncio.server import Request as HttpRequest
from websockets.asyncio.server import Response, ServerConnection, serve

from cel_jax.data.episode import Features
from cel_jax.workers.serving import wire
from cel_jax.workers.serving.batching import Batcher
from cel_jax.workers.serving.observations import Layout, read

MAX_MESSAGE_BYTES = 64 * 2**20  # three raw images of 1080p fit; openpi has no bound
INTERNAL_ERROR = 1011
log = logging.getLogger(__name__)


class PolicyServer:
    """Serves one policy.

    await server.run("0.0.0.0", 8000, stop, print)
    metadata: sent to every client on connect. default_prompt: for observations without one.
    """

    def __init__(
        self, batcher: Batcher, layout: Layout, features: Features, metadata: dict[str, Any], default_prompt: str = ""
    ) -> None:
        self._batcher, self._layout, self._features = batcher, layout, features
        self._metadata, self._prompt = metadata, default_prompt

    async def run(self, host: str, port: int, stop: asyncio.Event, listening: Callable[[int], None]) -> None:
        """Until `stop`. port 0: a free one; `listening` is told which."""
        batches = asyncio.create_task(self._batcher.run())
        options: dict[str, Any] = {"compression": None, "max_size": MAX_MESSAGE_BYTES, "process_request": _health}
        try:
            async with serve(self._handle, host, port, **options) as server:
                listening(next(iter(server.sockets)).getsockname()[1])
                await stop.wait()
        finally:
            batches.cancel()

    async def _handle(self, connection: ServerConnection) -> None:
        await connection.send(wire.pack(self._metadata))
        previous_ms: float | None = None
        try:
            async for message in connection:
                start_s = time.monotonic()
                reply = await self._answer(message, previous_ms)
                await connection.send(wire.pack(reply))
                previous_ms = 1e3 * (time.monotonic() - start_s)
        except websockets.ConnectionClosed:
            log.info("client %s left", connection.remote_address)
        except Exception:  # told to the client as openpi does: the text, then the end of the connection
            log.exception("request of %s failed", connection.remote_address)
            await connection.send(traceback.format_exc())
            await connection.close(INTERNAL_ERROR, "the policy server could not answer; see the text before")

    async def _answer(self, message: str | bytes, previous_ms: float | None) -> dict[str, Any]:
        if isinstance(message, str):
            raise wire.WireError("expected a binary message (msgpack), got text")
        start_s = time.monotonic()
        request = read(wire.unpack(message), self._layout, self._features, self._prompt)
        answer = await self._batcher.infer(request)
        timing = {"infer_ms": 1e3 * (time.monotonic() - start_s), "batch": answer.batch}
        if previous_ms is not None:
            timing["prev_total_ms"] = previous_ms
        return {
            "actions": answer.actions,
            "state": request.state,
            "policy_timing": {"infer_ms": answer.infer_ms},
            "server_timing": timing,
        }


def _health(connection: ServerConnection, request: HttpRequest) -> Response | None:
    if request.path == "/healthz":
        return connection.respond(http.HTTPStatus.OK, "OK\n")
    return None
