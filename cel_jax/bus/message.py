"""The wire format: a zmq multipart of one msgpack header and raw buffers.

Header fields: v version, k kind (request, reply, error), op, call, from [station, worker, role], to station, epoch,
deadline_s, body.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from cel_jax.bus.arrays import Buffer
from cel_jax.bus.errors import WireError
from cel_jax.bus.identity import Identity

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one message."""

    header_bytes: int = 1 << 20
    buffers: int = 16_384
    total_bytes: int = 1 << 28


@dataclasses.dataclass(frozen=True)
class Request:
    """One call as the server sees it. `deadline_s`: seconds that the caller still waits."""

    op: str
    call: int
    sender: Identity
    to: str
    epoch: int
    deadline_s: float
    header: Mapping[str, Any]
    buffers: Sequence[Buffer] = ()


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer. A handler fills header and buffers; the transport adds the rest."""

    header: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    buffers: Sequence[Buffer] = ()
    sender: Identity | None = None
    call: int = 0
    epoch: int = 0
    is_error: bool = False


def encode_request(request: Request) -> list[Buffer]:
    """Frames of a request. Raises WireError when the header cannot be carried."""
    return _encode("request", request, request.sender, to=request.to, op=request.op, deadline_s=request.deadline_s)


def encode_reply(reply: Reply) -> list[Buffer]:
    """Frames of a reply or an error."""
    if reply.sender is None:
        raise WireError("a reply needs its sender")
    return _encode("error" if reply.is_error else "reply", reply, reply.sender)


def decode_request(frames: Sequence[Buffer], limits: Limits) -> Request:
    """Raises WireError naming what was expected."""
    head = _decode(frames, limits, ("request",))
    return Request(
        op=_field(head, "op", str),
        call=_field(head, "call", int),
        sender=_sender(head),
        to=_field(head, "to", str),
        epoch=_field(head, "epoch", int),
        deadline_s=_field(head, "deadline_s", float),
        header=_field(head, "body", dict),
        buffers=tuple(frames[1:]),
    )


def decode_reply(frames: Sequence[Buffer], limits: Limits) -> Reply:
    """Raises WireError naming what was expected."""
    head = _decode(frames, limits, ("reply", "error"))
    return Reply(
        header=_field(head, "body", dict),
        buffers=tuple(frames[1:]),
        sender=_sender(head),
        call=_field(head, "call", int),
        epoch=_field(head, "epoch", int),
        is_error=head["k"] == "error",
    )


def _encode(kind: str, message: Any, sender: Identity, **more: Any) -> list[Buffer]:
    head = {"v": VERSION, "k": kind, "call": message.call, "epoch": message.epoch, "body": dict(message.header)}
    head["from"] = [sender.station, sender.worker, sender.role]
    head.update(more)
    try:
        packed = msgpack.packb(head, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"header of {more.get('op', kind)} cannot be packed by msgpack: {error}") from error
    return [packed, *message.buffers]


def check_size(frames: Sequence[Buffer], limits: Limits) -> None:
    """Raises WireError when a message is over its bounds."""
    if not frames:
        raise WireError("expected a header frame, got an empty message")
    header_bytes = memoryview(frames[0]).nbytes
    if header_bytes > limits.header_bytes:
        raise WireError(f"expected a header of at most {limits.header_bytes} bytes, got {header_bytes}")
    if len(frames) - 1 > limits.buffers:
        raise WireError(f"expected at most {limits.buffers} buffers, got {len(frames) - 1}")
    total = sum(memoryview(frame).nbytes for frame in frames)
    if total > limits.total_bytes:
        raise WireError(f"expected at most {limits.total_bytes} bytes in one message, got {total}")


def _decode(frames: Sequence[Buffer], limits: Limits, kinds: tuple[str, ...]) -> dict[str, Any]:
    check_size(frames, limits)
    try:
        head = msgpack.unpackb(frames[0], raw=False, strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"expected a msgpack header: {error or type(error).__name__}") from error
    if not isinstance(head, dict) or type(head.get("v")) is not int or head["v"] != VERSION:
        found = head.get("v") if isinstance(head, dict) else type(head).__name__
        raise WireError(f"expected wire version {VERSION}, got {found!r}; update the older side")
    if head.get("k") not in kinds:
        raise WireError(f"expected a message of kind {kinds}, got {head.get('k')!r}")
    return head


def _field(head: dict[str, Any], name: str, kind: type) -> Any:
    value = head.get(name)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise WireError(f"expected header field {name!r} of type {kind.__name__}, got {value!r:.80}")
    return value


def _sender(head: dict[str, Any]) -> Identity:
    parts = head.get("from")
    if not isinstance(parts, list) or len(parts) != 3 or not all(isinstance(part, str) and part for part in parts):
        raise WireError(f"expected the sender as [station, worker, role], none empty, got {parts!r:.80}")
    return Identity(*parts)
