"""The controller's line to one node agent: ask, and take whatever answer comes; no lock-step, no long wait."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from cel_jax.recovery import wire
from cel_jax.recovery.stations import Station, station_to_dict

RESEND_S = 1.0


class AgentLink:
    """One node. An answer may be lost with its agent; the question is then asked again."""

    def __init__(self, context: zmq.Context[Any], run_dir: Path, node: str) -> None:
        self.node = node
        self._socket = wire.connect_dealer(
            context, wire.endpoint(run_dir, f"agent-{node}"), f"controller-{secrets.token_hex(4)}"
        )  # fmt: skip
        self._number = 0
        self._asked_s = 0.0
        self._waiting = False
        self._agent_digest = ""

    def ask(
        self, since: int, stations: Sequence[Station], desired: Mapping[str, tuple[str, float]],
        calls: Sequence[Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Says what is wanted, unless a question is still open. Definitions go only when the agent lacks them."""
        if self._waiting and time.monotonic() - self._asked_s < RESEND_S:
            return
        definitions = [station_to_dict(station) for station in stations]
        digest = hashlib.sha256(json.dumps(definitions, sort_keys=True).encode()).hexdigest()[:16]
        self._number += 1
        message: dict[str, Any] = {
            "t": "sync", "id": self._number, "since": since, "digest": digest,
            "desired": {name: list(value) for name, value in desired.items()}, "calls": [dict(call) for call in calls],
        }  # fmt: skip
        if digest != self._agent_digest:
            message["stations"] = definitions
        self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.send(wire.pack(message), flags=zmq.DONTWAIT)
        except zmq.Again:
            return  # the agent is away; asked again later
        self._waiting, self._asked_s = True, time.monotonic()

    def answer(self, wait_s: float) -> dict[str, Any] | None:
        """The agent's last answer within `wait_s`, or None. Answers to older questions are passed over."""
        end = time.monotonic() + wait_s
        while self._socket.poll(max(0, int(1000 * (end - time.monotonic())))):
            message = wire.unpack(self._socket.recv())
            if message["id"] == self._number:
                self._waiting, self._agent_digest = False, message["digest"]
                return message
        return None
