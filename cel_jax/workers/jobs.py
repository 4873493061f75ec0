"""Lets a server hand its requests to one loop: the store is not thread-safe, and a long job must not hold a socket."""

from __future__ import annotations

import queue
from collections.abc import Callable

from cel_jax.bus.deferred import Deferred
from cel_jax.bus.errors import BoundReached, BusError
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.server import Handler

Job = Callable[[], None]
LIMIT = 4096


class Refused(BusError):
    """A request that the worker's own code refuses; the message says why."""

    kind = "refused"


class JobQueue:
    """Jobs in order of arrival, run by whoever calls `run_for`."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job] = queue.Queue(LIMIT)

    def put(self, job: Job) -> None:
        """Raises BoundReached when the loop is thousands of jobs behind."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full as error:
            raise BoundReached(f"{LIMIT} jobs wait already; try again later") from error

    def handler(self, operation: Callable[[Request], Reply]) -> Handler:
        """A server's handler that answers from the loop."""

        def handle(request: Request) -> Deferred:
            deferred = Deferred()
            self.put(lambda: _answer(operation, request, deferred))
            return deferred

        return handle

    def run_for(self, wait_s: float) -> int:
        """Runs what is queued, waiting at most `wait_s` for the first job; returns how many ran."""
        done = 0
        try:
            job = self._jobs.get(timeout=wait_s)
            while True:
                job()
                done += 1
                job = self._jobs.get_nowait()
        except queue.Empty:
            return done


def _answer(operation: Callable[[Request], Reply], request: Request, deferred: Deferred) -> None:
    try:
        deferred.reply(operation(request))
    except BusError as error:
        deferred.fail(error)
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        deferred.fail(Refused(f"{request.op}: {type(error).__name__}: {error}"))
