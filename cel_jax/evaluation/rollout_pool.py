"""The rollout's worker processes as the parent sees them: started, asked, waited for with a deadline, stopped."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cel_jax.evaluation.rollout_wire import pack, unpack
from cel_jax.evaluation.rollout_worker import worker_main
from cel_jax.evaluation.trials import MakeDriver, MakeRobot, RolloutError, RolloutOptions

JOIN_S = 5.0
MAX_COMMAND_BYTES = 65_536  # two of them fit into a pipe, so that sending never waits
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Reply = tuple[dict[str, Any], list[np.ndarray]]


class WorkerHandle:
    """One worker process with its pipe."""

    def __init__(
        self, make_robot: MakeRobot, make_driver: MakeDriver | None, options: RolloutOptions, index: int
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = f"rollout-{index}"
        self._options = options
        self.connection, theirs = context.Pipe()
        arguments = (theirs, make_robot, make_driver, options, self.name)
        self._process = context.Process(target=worker_main, args=arguments, name=self.name, daemon=True)
        self._process.start()
        theirs.close()
        self._asked: list[tuple[float, str]] = []

    @property
    def busy(self) -> bool:
        return bool(self._asked)

    @property
    def deadline(self) -> float:
        """When the oldest question must have been answered, on the monotonic clock."""
        return self._asked[0][0]

    def ask(self, commands: Sequence[dict[str, Any]], arrays: Sequence[np.ndarray] = ()) -> None:
        """Sends commands; exactly one reply message follows. Raises `RolloutError` where the worker is gone."""
        message = pack({"commands": list(commands)}, arrays)
        if len(message) > MAX_COMMAND_BYTES:
            raise RolloutError(f"{self.name}: commands of {len(message)} bytes; use fewer slots_per_process")
        starts = any("trial" in command for command in commands)
        wait_s = self._options.start_deadline_s if starts else self._options.round_deadline_s
        now = max([time.monotonic(), *(deadline for deadline, _ in self._asked)])
        self._asked.append((now + wait_s, _describe(commands)))
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise self._dead() from error

    def answer(self) -> list[Reply]:
        """The replies to the oldest question. Raises `RolloutError` where the worker died, failed or is late."""
        left_s = max(0.0, self.deadline - time.monotonic())
        try:
            if not self.connection.poll(left_s):
                raise RolloutError(
                    f"{self.name}: no answer in time to {self._asked[0][1]}; raise the deadline or look at it"
                )
            header, arrays = unpack(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            raise self._dead() from error
        if "error" in header:
            raise RolloutError(f"{self.name} failed while it had {self._asked[0][1]}:\n{header['error']}")
        self._asked.pop(0)
        return _split(header["replies"], arrays)

    def _dead(self) -> RolloutError:
        self._process.join(JOIN_S)
        had = self._asked[0][1] if self._asked else "nothing"
        return RolloutError(f"{self.name} died with exit code {self._process.exitcode} while it had {had}")

    def close(self, kill: bool) -> None:
        """Ends the process: asked politely or, with `kill` or after a while, by force."""
        if not kill:
            with contextlib.suppress(OSError):
                self.connection.send_bytes(b"")
        self.connection.close()
        if not kill:
            self._process.join(JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(JOIN_S)


def _describe(commands: Sequence[dict[str, Any]]) -> str:
    trials = [command["trial"] for command in commands if "trial" in command]
    if not trials:
        return f"{len(commands)} chunks to execute"
    return f"trials to start on (robot_seed, seed) {[(t['robot_seed'], t['seed']) for t in trials]}"


def _split(replies: list[dict[str, Any]], arrays: list[np.ndarray]) -> list[Reply]:
    found, at = [], 0
    for reply in replies:
        found.append((reply, arrays[at : at + reply["count"]]))
        at += reply["count"]
    return found


def num_processes(options: RolloutOptions) -> int:
    """One per core that this process may use, unless it is given."""
    if options.processes:
        return options.processes
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def open_workers(
    make_robot: MakeRobot, options: RolloutOptions, make_driver: MakeDriver | None = None
) -> Iterator[list[WorkerHandle]]:
    """Starts the workers and ends them again, by force after an error. Callers guard their __main__ (spawn)."""
    workers: list[WorkerHandle] = []
    kill = True
    try:
        with _one_thread():
            for index in range(num_processes(options)):
                workers.append(WorkerHandle(make_robot, make_driver, options, index))
        yield workers
        kill = any(worker.busy for worker in workers)
    finally:
        for worker in workers:
            worker.close(kill)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Children get one thread each: there is one child per core."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def wait_for_any(workers: Sequence[WorkerHandle]) -> list[WorkerHandle]:
    """Busy workers that can be read; those past their deadline among them, so that `answer` says so."""
    busy = [worker for worker in workers if worker.busy]
    left_s = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
    ready = multiprocessing.connection.wait([worker.connection for worker in busy], left_s)
    now = time.monotonic()
    return [worker for worker in busy if worker.connection in ready or worker.deadline <= now]
