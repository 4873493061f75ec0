"""An answer that a handler promises for later. Answered once, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cel_jax.bus.errors import BusError
from cel_jax.bus.message import Reply

Send = Callable[[Reply], None]


def error_reply(kind: str, message: str, epoch: int = 0) -> Reply:
    """The reply that raises RemoteError at the caller. epoch: the one to join, where the caller's is over."""
    return Reply(header={"kind": kind, "message": message, "epoch": epoch}, is_error=True)


class Deferred:
    """A handler returns it; `reply` or `fail` ends it. `on_undelivered` runs on the server's thread when the peer
    is gone before it got the answer."""

    def __init__(self, on_undelivered: Callable[[], None] | None = None) -> None:
        self.on_undelivered = on_undelivered
        self._lock = threading.Lock()
        self._send: Send | None = None
        self._early: Reply | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """True when it was answered, or when the caller's deadline has passed."""
        with self._lock:
            return self._done

    def reply(self, reply: Reply) -> bool:
        """False when it was answered before or its caller no longer waits."""
        with self._lock:
            if self._done:
                return False
            self._done = True
            if self._send is None:
                self._early = reply
                return True
            self._send(reply)
        return True

    def fail(self, error: BusError) -> bool:
        """Raises RemoteError with the kind of `error` at the caller."""
        return self.reply(error_reply(error.kind, str(error)))

    def bind(self, send: Send) -> None:
        """The server's part: where the answer goes."""
        with self._lock:
            self._send = send
            if self._early is not None:
                send(self._early)
                self._early = None

    def abandon(self) -> bool:
        """The server's part: the caller no longer waits. False when it was answered."""
        with self._lock:
            was_open = not self._done
            self._done = True
            return was_open
