"""Errors of SwarmLink. `kind` travels on the wire, so a caller can tell them apart."""

from __future__ import annotations


class BusError(Exception):
    """Anything that SwarmLink refuses or cannot do."""

    kind = "bus_error"


class WireError(BusError):
    """A message that does not follow the wire format or its bounds."""

    kind = "wire"


class DeadlineExceeded(BusError, TimeoutError):
    """No reply within the deadline."""

    kind = "deadline"


class PeerLost(BusError, ConnectionError):
    """The connection broke while a call was on it; the peer may or may not have executed it."""

    kind = "peer_lost"


class AccessRefused(BusError, PermissionError):
    """The server does not know this CURVE key."""

    kind = "access_refused"


class ClientClosed(BusError):
    """The client was closed while the call waited."""

    kind = "closed"


class EpochAdvanced(PeerLost):
    """The connection group was rebuilt: the call went out under an older epoch and may have been executed."""

    kind = "stale_epoch"


class StaleIdentity(BusError):
    """The sender is not the worker that occupies its station, or the station is not the one addressed."""

    kind = "stale_identity"


class BoundReached(BusError):
    """A bounded queue is full; nothing was enqueued."""

    kind = "bound"


class BindError(BusError, OSError):
    """A server could not take its endpoint."""

    kind = "bind"


class SpaceError(BusError, OSError):
    """Not enough disk space."""

    kind = "space"


class Conflict(BusError):
    """The same identifier was used for two different contents."""

    kind = "conflict"


class RemoteError(BusError):
    """The server answered with an error. `remote_kind` is the `kind` of the error raised there."""

    kind = "remote"

    def __init__(self, remote_kind: str, message: str, op: str, endpoint: str, station: str) -> None:
        super().__init__(f"{op} at station {station!r} ({endpoint}) failed with {remote_kind}: {message}")
        self.remote_kind = remote_kind
        self.remote_message = message
