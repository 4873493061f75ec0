"""Requests of many clients, one inference: whoever waits is taken along, nobody waits for more than the timeout."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from cel_jax.models.policy import Policy
from cel_jax.workers.serving.observations import Request


class Busy(RuntimeError):
    """More requests wait than the queue takes; the client asks again."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """actions: f32 [H, A], absolute. infer_ms: of the batch. batch: how many were answered together."""

    actions: np.ndarray
    infer_ms: float
    batch: int


class Batcher:
    """`await batcher.infer(request)`; run `batcher.run()` beside it as a task.

    target: most requests of a batch. timeout_s: how long the first waits for others. max_queue: bound of the queue.
    """

    def __init__(self, policy: Policy, target: int, timeout_s: float, max_queue: int = 256) -> None:
        self._policy, self._target, self._timeout_s = policy, target, timeout_s
        self._queue: asyncio.Queue[tuple[Request, asyncio.Future[Answer]]] = asyncio.Queue(max_queue)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "inference")
        self._seed = 0
        self.sizes: list[int] = []

    async def infer(self, request: Request) -> Answer:
        """Raises Busy at once where the queue is full, and whatever the inference raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((request, future))
        except asyncio.QueueFull:
            raise Busy(f"{self._queue.maxsize} requests wait already; ask again") from None
        return await future

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._serve(await self._collect())
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _collect(self) -> list[tuple[Request, asyncio.Future[Answer]]]:
        batch = [await self._queue.get()]
        end_s = time.monotonic() + self._timeout_s
        while len(batch) < self._target:
            try:
                batch.append(await asyncio.wait_for(self._queue.get(), max(0.0, end_s - time.monotonic())))
            except TimeoutError:
                break
        return [item for item in batch if not item[1].cancelled()]

    async def _serve(self, batch: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        self._seed += 1
        self.sizes = [*self.sizes[-999:], len(batch)]
        requests = [request for request, _ in batch]
        try:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self._thread, infer, self._policy, requests, self._seed)
        except Exception as error:  # handed to every client of the batch
            for _, future in batch:
                _set(future, error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            _set(future, answer)


def _set(future: asyncio.Future[Answer], result: Answer | Exception) -> None:
    if future.done():  # its client has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def infer(policy: Policy, requests: Sequence[Request], seed: int) -> list[Answer]:
    """One inference for all of them."""
    start_s = time.monotonic()
    cameras = policy.features.camera_names if policy.config.image_keys else ()
    images = {name: np.stack([request.images[name] for request in requests]) for name in cameras}
    present = {name: np.asarray([request.present[name] for request in requests]) for name in cameras}
    objects = [request.objects for request in requests if request.objects is not None]
    actions = policy.infer(
        np.stack([request.state for request in requests]),
        images,
        np.stack(objects) if objects else None,
        [request.prompt for request in requests],
        seed,
        present,
    )
    infer_ms = 1e3 * (time.monotonic() - start_s)
    return [Answer(row, infer_ms, len(requests)) for row in actions]
