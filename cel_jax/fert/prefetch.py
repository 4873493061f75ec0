"""Batches made ahead in one thread: few, in order, and with their errors."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable
from typing import Any

RETRY_S = 0.05


@dataclasses.dataclass(frozen=True)
class _Failure:
    error: Exception


class Prefetcher:
    """Calls `make(first)`, `make(first + 1)`, ... and holds at most `depth` results.

    make: batch number -> anything, or None if there is nothing yet (asked again shortly). Its exception is raised by
    `get`, and ends the thread.
    """

    def __init__(self, make: Callable[[int], Any | None], first: int, depth: int = 2):
        self._make = make
        self._number = first
        self._room = threading.Semaphore(depth)  # taken before a batch is made, so that `depth` counts that one too
        self._ready: queue.Queue[Any] = queue.Queue(depth + 1)
        self._stop = threading.Event()
        self._failure: _Failure | None = None
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def get(self, timeout_s: float) -> Any | None:
        """The next batch, or None if there is none within `timeout_s`. Raises what `make` raised."""
        if self._failure is not None:
            raise self._failure.error
        try:
            item = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, _Failure):
            self._failure = item
            raise item.error
        self._room.release()
        return item

    def close(self, timeout_s: float = 30.0) -> None:
        """End the thread. Raises TimeoutError if `make` does not return in time."""
        self._stop.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"prefetch: batch {self._number} is still being made after {timeout_s} s")

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._room.acquire(timeout=RETRY_S):
                continue
            try:
                item = self._wait_for_one()
            except Exception as error:  # handed to the training loop by `get`
                item = _Failure(error)
            if item is not None:
                self._ready.put_nowait(item)
            if isinstance(item, _Failure):
                return

    def _wait_for_one(self) -> Any | None:
        """The next batch; None only when stopped."""
        while not self._stop.is_set():
            item = self._make(self._number)
            if item is not None:
                self._number += 1
                return item
            self._stop.wait(RETRY_S)
        return None
