"""Delivers labelled episodes from a station's spool to a store, on its own thread and over its own sockets."""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from cel_jax.bus.bandwidth import TokenBucket
from cel_jax.bus.client import Client
from cel_jax.bus.durable import file_sha256
from cel_jax.bus.errors import BusError, ClientClosed, RemoteError
from cel_jax.bus.failures import Counters, Failure, OnFailure
from cel_jax.bus.histogram import Histogram
from cel_jax.bus.message import Reply
from cel_jax.bus.spool import Spool, SpooledEpisode

OnStored = Callable[[str, str], None]
_log = logging.getLogger(__name__)
_DEADLINE_S = 10.0
_COMMIT_DEADLINE_S = 120.0
_WINDOW = 4  # pieces on their way at once
_CLOSE_S = 15.0
_DECLINE_S = 30.0  # how long a store without room comes last
_DECLINED = ("space", "bound")  # nothing was stored: another store may take the episode


class TransferError(BusError):
    """A transfer that must start again from an offer."""

    kind = "transfer"


class Courier:
    """Delivers at least once; a store keeps an id once, so together exactly once. Tries for ever, with back-off.

    stores: clients of its own, one for each store. An episode goes to the store with the fewest frames and stays bound
    to it. The spool deletes only after the acknowledgement. hold_s: how long a label can still be undone.
    """

    def __init__(
        self,
        spool: Spool,
        stores: Sequence[Client],
        *,
        limit_bytes_s: float = 0.0,
        piece_bytes: int = 262_144,
        hold_s: float = 0.0,
        poll_s: float = 0.5,
        max_backoff_s: float = 10.0,
        on_stored: OnStored | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self._spool, self._stores = spool, {client.expected_station: client for client in stores}
        self._bucket, self._piece_bytes = TokenBucket(limit_bytes_s, 2 * piece_bytes), piece_bytes
        self._hold_s, self._poll_s, self._max_backoff_s = hold_s, poll_s, max_backoff_s
        self._on_stored, self._on_failure, self._death = on_stored, on_failure, ""
        self._declined_s: dict[str, float] = {}  # store -> when it last had no room
        self.latency = Histogram()  # from the label to the store's acknowledgement
        self.counters, self._stop, self._wake = Counters(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._guarded_run, name="courier", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Looks into the spool now instead of at the next poll."""
        self._wake.set()

    def check(self) -> None:
        """Raises TransferError where its thread died: nothing would be delivered any more."""
        if self._death:
            raise TransferError(f"the courier died: {self._death}")

    def close(self) -> None:
        """Stops after the piece that is on its way; the rest stays in the spool. Does not close the clients."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise BusError(f"courier did not stop within {_CLOSE_S} s; a store does not answer")

    def __enter__(self) -> Courier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded_run(self) -> None:
        try:
            self._run()
        except Exception as error:
            _log.exception("courier died")
            self._death = f"{type(error).__name__}: {error}"
            self._report("thread_died", "", f"courier: {self._death}")

    def _run(self) -> None:
        backoff_s = 0.0
        while not self._stop.is_set():
            failed = sum(not self._try(episode) for episode in self._spool.pending(self._hold_s))
            backoff_s = min(self._max_backoff_s, max(0.1, 2 * backoff_s)) if failed else 0.0
            self._wake.wait(backoff_s or self._poll_s)
            self._wake.clear()

    def _try(self, episode: SpooledEpisode) -> bool:
        if self._stop.is_set():
            return True
        try:
            self._deliver(episode)
            return True
        except ClientClosed:
            self._stop.set()
        except (BusError, concurrent.futures.TimeoutError) as error:
            self.counters.add("failed_transfers")
            self._report("transfer_failed", self._spool.store_of(episode.id), f"episode {episode.id}: {error}")
        return False

    def _deliver(self, episode: SpooledEpisode) -> None:
        client = self._bound_store(episode.id)
        sha256 = file_sha256(episode.path)
        try:
            head = {"id": episode.id, "total_bytes": episode.size_bytes, "sha256": sha256}
            answer = client.call("offer", head, deadline_s=_DEADLINE_S).header
        except RemoteError as error:
            if error.remote_kind in _DECLINED:
                self._declined_s[client.expected_station] = time.monotonic()
                self._spool.unassign(episode.id)
            raise
        if answer["status"] != "stored":
            self._send_pieces(client, episode, int(answer["offset"]))
            if self._stop.is_set():
                return
            answer = client.call("commit", {"id": episode.id}, deadline_s=_COMMIT_DEADLINE_S).header
        self._finish(episode, client, str(answer["status"]))

    def _finish(self, episode: SpooledEpisode, client: Client, status: str) -> None:
        if status != "stored":
            raise TransferError(f"store {client.expected_station!r} answered {status!r}, expected stored")
        if self._on_stored is not None:
            self._on_stored(episode.id, client.expected_station)
        self.latency.add(time.time() - episode.path.stat().st_mtime)
        self._spool.delete(episode.id)
        self.counters.add("delivered")

    def _bound_store(self, episode_id: str) -> Client:
        name = self._spool.store_of(episode_id)
        if not name:
            name = self._emptiest()
            self._spool.assign(episode_id, name)
        if name not in self._stores:
            raise TransferError(f"it belongs to store {name!r}, which is not in this fleet; revoke it when it is gone")
        return self._stores[name]

    def _emptiest(self) -> str:
        asked = {name: client.submit("stats", deadline_s=_DEADLINE_S) for name, client in self._stores.items()}
        frames: dict[str, int] = {}
        for name, future in asked.items():
            try:
                frames[name] = int(future.result(_DEADLINE_S + 1.0).header["frames"])
            except BusError as error:
                self._report("transfer_failed", name, f"no stats: {error}")
        if not frames:
            raise TransferError(f"none of the stores {sorted(self._stores)} answers")
        return min(frames, key=lambda name: (self._has_declined(name), frames[name], name))

    def _has_declined(self, store: str) -> bool:
        return time.monotonic() - self._declined_s.get(store, -math.inf) < _DECLINE_S

    def _send_pieces(self, client: Client, episode: SpooledEpisode, offset: int) -> None:
        window: collections.deque[tuple[int, concurrent.futures.Future[Reply]]] = collections.deque()
        try:
            with episode.path.open("rb") as file:
                file.seek(offset)
                while not self._stop.is_set() and (piece := file.read(self._piece_bytes)):
                    offset += len(piece)
                    window.append((offset, self._send_piece(client, episode.id, offset - len(piece), piece)))
                    if len(window) >= _WINDOW:
                        _confirm(window.popleft())
            while window:
                _confirm(window.popleft())
        finally:  # the next attempt starts with nothing of this one on its way
            concurrent.futures.wait([future for _, future in window], _DEADLINE_S + 1.0)

    def _send_piece(
        self, client: Client, episode_id: str, offset: int, piece: bytes
    ) -> concurrent.futures.Future[Reply]:
        self._stop.wait(self._bucket.take(len(piece)))
        self.counters.add("sent_bytes", len(piece))
        return client.submit("piece", {"id": episode_id, "offset": offset}, [piece], _DEADLINE_S)

    def _report(self, kind: str, store: str, detail: str) -> None:
        _log.warning("%s: %s", kind, detail)
        if self._on_failure is not None:
            endpoint = self._stores[store].endpoint if store in self._stores else ""
            self._on_failure(Failure(kind, store, endpoint, detail))


def _confirm(entry: tuple[int, concurrent.futures.Future[Reply]]) -> None:
    expected, future = entry
    found = future.result(_DEADLINE_S + 1.0).header.get("offset")
    if found != expected:
        raise TransferError(f"store wants byte {found!r} next, {expected} was sent")
