"""Wakes an io thread that polls sockets, from any thread."""

from __future__ import annotations

import os


class Waker:
    """A pipe whose read end is polled. `wake` never blocks."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    @property
    def fd(self) -> int:
        return self._read_fd

    def wake(self) -> None:
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:  # a full pipe wakes the poller just as well
            return

    def drain(self) -> None:
        try:
            while len(os.read(self._read_fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)
