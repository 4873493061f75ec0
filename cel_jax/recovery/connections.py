"""Connections that survive their peers: rebuilt under a new epoch, with queued transfers replayed in their order, and
data of a retired worker dropped. Any transport: a connection is what `connect` returns."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from cel_jax.bus.identity import Identity
from cel_jax.recovery.membership import Artifact, Response
from cel_jax.recovery.peers import Ended, Peer, PeerLost, PeerView

Connection = TypeVar("Connection")
Item = TypeVar("Item")


class ConnectionBook(Generic[Connection]):
    """One connection per peer station, held with the peer and epoch it was made for. Not thread safe."""

    def __init__(
        self, peers: PeerView, connect: Callable[[Peer], Connection], close: Callable[[Connection], None]
    ) -> None:
        self._peers, self._connect, self._close = peers, connect, close
        self._held: dict[str, tuple[Peer, Connection]] = {}

    def get(self, station: str, deadline_s: float, ended: Ended = lambda: False) -> tuple[Peer, Connection]:
        """The connection to the station's present worker. One held for a retired worker or an older epoch is closed
        and rebuilt. Raises PeerLost as `PeerView.wait_fresh`."""
        held = self._held.get(station)
        if held is not None and self._fresh(held[0]):
            return held
        self.drop(station)
        peer = self._peers.wait_fresh(station, deadline_s, ended=ended)
        self._held[station] = (peer, self._connect(peer))
        return self._held[station]

    def drop(self, station: str) -> None:
        """Closes a connection that failed; the next `get` makes a new one."""
        held = self._held.pop(station, None)
        if held is not None:
            self._close(held[1])

    def _fresh(self, peer: Peer) -> bool:
        return self._peers.check(Artifact.CONNECTION, peer.identity, peer.epoch) is Response.ACCEPT


class TransferQueue(Generic[Connection, Item]):
    """Transfers to one station in order. One stays queued until acknowledged; those sent over a connection that no
    longer holds are sent again, first first, over its successor. So delivery is at least once."""

    def __init__(self, station: str, book: ConnectionBook[Connection], peers: PeerView, limit: int = 1024) -> None:
        self.station, self._book, self._peers, self._limit = station, book, peers, limit
        self._queue: collections.deque[Item] = collections.deque()
        self._sent = 0
        self._sent_to: Peer | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, item: Item) -> None:
        """Queues a transfer. Raises OverflowError at the limit: the producer must wait."""
        if len(self._queue) >= self._limit:
            raise OverflowError(f"station {self.station}: {self._limit} transfers wait for it; produce slower")
        self._queue.append(item)

    def pump(self, send: Callable[[Connection, Item], None], deadline_s: float, ended: Ended = lambda: False) -> int:
        """Sends what is due and returns how many. Raises what `send` raises; the item stays queued."""
        peer, connection = self._book.get(self.station, deadline_s, ended)
        if self._sent_to is not None and self._must_replay(self._sent_to):
            self._sent = 0
        self._sent_to = peer
        start = self._sent
        for item in list(self._queue)[start:]:
            send(connection, item)
            self._sent += 1
        return self._sent - start

    def lost(self) -> None:
        """The connection broke though its peer is the present worker: it is remade, and what it carried sent again."""
        self._book.drop(self.station)
        self._sent = 0

    def acknowledge(self, worker: Identity) -> None:
        """The oldest transfer arrived. A late acknowledgement of a retired worker counts for nothing."""
        if self._peers.check(Artifact.CONTROL_MESSAGE, worker) is Response.IGNORE:
            return
        if not self._sent:
            raise PeerLost(f"station {self.station}: {worker.worker} acknowledged a transfer that was not sent")
        self._queue.popleft()
        self._sent -= 1

    def _must_replay(self, sent_to: Peer) -> bool:
        return self._peers.check(Artifact.QUEUED_TRANSFER, sent_to.identity, sent_to.epoch) is Response.REPLAY


def receive_current(
    poll: Callable[[float], tuple[Identity, Item] | None],
    peers: PeerView,
    deadline_s: float,
    ended: Ended = lambda: False,
    on_drop: Callable[[Identity], None] = lambda identity: None,
) -> tuple[Identity, Item]:
    """The next item whose worker is at its station now; data of a retired one is dropped and received again.

    poll: waits at most the given seconds and returns (identity, item) or None. Raises PeerLost at the deadline.
    """
    end = time.monotonic() + deadline_s
    while not ended() and (left_s := end - time.monotonic()) > 0:
        received = poll(min(left_s, 0.2))
        if received is None:
            continue
        if peers.check(Artifact.DATA, received[0]) is Response.ACCEPT:
            return received
        on_drop(received[0])
    raise PeerLost(f"no data of a live worker within {deadline_s} s")
