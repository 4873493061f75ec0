"""The thread that owns a socket, and how it is woken and ended; a client and a server each have one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cel_jax.bus.errors import BusError
from cel_jax.bus.wakeup import Waker

CLOSE_S = 5.0


class IoThread:
    """Runs `run`, which polls `waker` and returns soon after `ending`."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.waker = Waker()
        self._ending, self._closed, self._lock = threading.Event(), False, threading.Lock()
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ending(self) -> bool:
        return self._ending.is_set()

    @property
    def serves(self) -> bool:
        """Whether what is handed to it now will be seen."""
        return self._thread.is_alive() and not self.ending

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """Asks it to return."""
        self._ending.set()

    def close(self, why_stuck: str) -> None:
        """Ends the thread and frees the waker; again, it does nothing. Raises BusError where it does not end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.end()
        self.waker.wake()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            raise BusError(f"{self._thread.name}: did not stop in {CLOSE_S} s: {why_stuck}")
        self.waker.close()
