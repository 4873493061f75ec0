"""Many episodes, one sampler: requests that wait together are sampled together."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from cel_jax.planner.records import Sampling
from cel_jax.planner.sampler import Generation, Sampler


@dataclasses.dataclass(frozen=True)
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    answer: Future[Generation]


class Batcher:
    """An `Engine`. A batch goes when `target` requests wait, or `timeout_s` after the last one came.

    A request is answered or fails within `deadline_s`. `close` fails what waits.
    """

    def __init__(self, sampler: Sampler, target: int, timeout_s: float = 0.02, deadline_s: float = 300.0) -> None:
        self._sampler, self._target = sampler, target
        self._timeout_s, self._deadline_s = timeout_s, deadline_s
        self._waiting: queue.Queue[_Request | None] = queue.Queue(maxsize=65_536)
        self._thread = threading.Thread(target=self._run, name="planner-batcher", daemon=True)
        self._thread.start()

    def set_target(self, target: int) -> None:
        """How many requests can wait at once, at most: the episodes that still run."""
        self._target = max(1, target)

    def check_length(self, prompt: Sequence[int]) -> None:
        self._sampler.check_length(prompt)

    def generate(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Generation:
        """Blocks. Raises TimeoutError after the deadline, and whatever the sampler raised."""
        request = _Request(prompt, sampling, seed, Future())
        self._waiting.put(request, timeout=self._deadline_s)
        return request.answer.result(timeout=self._deadline_s)

    def close(self) -> None:
        self._waiting.put(None, timeout=self._deadline_s)
        self._thread.join(self._deadline_s)

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._gather()
            if batch:
                self._answer(batch)

    def _gather(self) -> tuple[list[_Request], bool]:
        """Requests until there are enough or none has come for a while; False once closed."""
        first = self._waiting.get()  # the thread's only idle state; `close` ends it
        if first is None:
            return [], False
        batch, last = [first], time.monotonic()
        while len(batch) < self._target:
            try:
                request = self._waiting.get(timeout=max(1e-4, last + self._timeout_s - time.monotonic()))
            except queue.Empty:
                return batch, True
            if request is None:
                return batch, False
            batch.append(request)
            last = time.monotonic()
        return batch, True

    def _answer(self, batch: list[_Request]) -> None:
        try:
            found = self._sampler.sample(
                [r.prompt for r in batch], [r.sampling for r in batch], [r.seed for r in batch]
            )
        except Exception as error:  # handed to every caller
            for request in batch:
                request.answer.set_exception(error)
            return
        for request, generation in zip(batch, found, strict=True):
            request.answer.set_result(generation)
