"""The inference worker: batches whoever waits, answers each with its own actions.

python -m cel_jax.workers.inference
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from cel_jax.bus.blobs import fetch_blob
from cel_jax.bus.channels import ActionReply, InferenceFeed, ObservationRequest
from cel_jax.bus.errors import BusError
from cel_jax.data.images import decode_jpeg
from cel_jax.models.params_io import cast
from cel_jax.models.policy import Policy
from cel_jax.models.weights_wire import from_bytes
from cel_jax.recovery.beat import WorkerContext
from cel_jax.workers.published import current_policy
from cel_jax.workers.wiring import HOME, TRAINING, Wiring

WAIT_S = 0.5
POLL_S = 1.0


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context, bus = wiring.context, wiring.config.bus
    policy, version = current_policy(wiring)
    policy.warm(batch_sizes(bus.batch_target), wiring.config.task.prompt)
    with wiring.client(HOME) as home, wiring.client(TRAINING) as training:
        updates = Updates(policy, version, context.stop_event)
        threading.Thread(target=updates.follow, args=(training,), name="policy updates", daemon=True).start()
        feed = InferenceFeed([home])
        context.ready()
        seed = 0
        while not context.should_stop():
            batch = feed.fetch(bus.batch_target, bus.batch_timeout_s, WAIT_S)
            policy, version = updates.newest()
            context.progress(f"policy {version}")
            if batch:
                seed += 1
                serve(feed, policy, version, batch, seed)
    context.close()


def serve(feed: InferenceFeed, policy: Policy, version: int, batch: Sequence[ObservationRequest], seed: int) -> None:
    """One batch: one inference, one answer for each observation."""
    actions = infer(policy, batch, seed)
    replies = [ActionReply(item.id, version, {"actions": row}) for item, row in zip(batch, actions, strict=True)]
    try:
        feed.answer(replies)
    except BusError as error:  # the robots ask again; the home may be on its way back
        print(f"answers of policy {version} not delivered: {error}", flush=True)


def infer(policy: Policy, batch: Sequence[ObservationRequest], seed: int) -> np.ndarray:
    """Absolute actions, float32 [B, H, A]."""
    states = np.stack([np.asarray(item.arrays["state"]) for item in batch])
    has_objects = policy.features.objects_shape is not None
    objects = np.stack([np.asarray(item.arrays["objects"]) for item in batch]) if has_objects else None
    images = {} if has_objects else {name: _camera(name, batch) for name in policy.features.camera_names}
    return policy.infer(states, images, objects, [item.task for item in batch], seed)


def _camera(name: str, batch: Sequence[ObservationRequest]) -> np.ndarray:
    return np.stack(
        [decode_jpeg(bytes(item.arrays["images"][name]), item.id.episode, name, item.id.step) for item in batch]
    )


def batch_sizes(target: int) -> list[int]:
    """1, 2, 4, ... up to the batch target: what is compiled before service."""
    sizes = [1]
    while sizes[-1] < target:
        sizes.append(min(2 * sizes[-1], target))
    return sizes


def _renewed(policy: Policy, block: Any) -> Policy:
    """The policy with a version's weights, laid out for sampling before anybody waits for it."""
    made = policy.with_params(cast(from_bytes(block, policy.config), policy.config.dtype))
    jax.block_until_ready(made.packed)
    return made


class Updates:
    """Follows the learner's versions in a thread; the loop swaps between batches."""

    def __init__(self, policy: Policy, version: int, stop: threading.Event) -> None:
        self._current: tuple[Policy, int] = (policy, version)
        self._stop = stop
        self._error: Exception | None = None

    def newest(self) -> tuple[Policy, int]:
        """Raises what ended the thread: to serve an old version for ever would be silent."""
        if self._error is not None:
            raise self._error
        return self._current

    def follow(self, training: Any) -> None:
        """A learner that is away is no reason to stop serving: the present version stays."""
        try:
            self._follow(training)
        except Exception as error:  # raised in the serving loop by `newest`
            self._error = error

    def _follow(self, training: Any) -> None:
        while not self._stop.wait(POLL_S):
            policy, version = self._current
            try:
                found = fetch_blob(training, version, deadline_s=60.0)
            except BusError:
                continue
            if found is not None:
                self._current = (_renewed(policy, found[1]), found[0])


if __name__ == "__main__":
    main()
