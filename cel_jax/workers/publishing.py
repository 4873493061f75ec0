"""Hands out policy versions beside the learner: it waits for a copy on its devices, a thread does the rest."""

from __future__ import annotations

import collections
import concurrent.futures
import time
from typing import Any

import jax

from cel_jax.bus.blobs import BlobServer
from cel_jax.fert.learner import Learner, Published
from cel_jax.models import weights_wire
from cel_jax.models.policy import Policy
from cel_jax.models.presets import Pi0Config, config_from_dict
from cel_jax.models.saving import read_manifest
from cel_jax.recovery import rundb
from cel_jax.workers.published import keep_published
from cel_jax.workers.wiring import Wiring

MOST_UNDER_WAY = 2  # versions at a time: each holds a copy of the weights


def released_network(wiring: Wiring) -> Pi0Config:
    """The start policy's network as its folder has it; versions go out in its dtype."""
    return config_from_dict(read_manifest(wiring.start_folder)["config"])


class Publisher:
    """Versions in order of their numbers: to the bus, then to the run's folder, which outlives the learner.

    policy: for its statistics and features. network: as saved; weights travel in its dtype.
    """

    def __init__(self, wiring: Wiring, policy: Policy, network: Pi0Config, blobs: BlobServer) -> None:
        self._wiring, self._policy, self._network, self._blobs = wiring, policy, network, blobs
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "publisher")
        self._under_way: collections.deque[concurrent.futures.Future[None]] = collections.deque()

    def prepare(self, params: Any) -> None:
        """Compiles the copy, so that the first version costs the learner no more than the others."""
        jax.block_until_ready(self._copy(params))

    def publish_due(self, learner: Learner, force: bool = False) -> bool:
        """Publishes the learner's version if one is due; True if so. Returns at once, unless two are still under way.

        Raises what failed for an earlier one.
        """
        start_s = time.monotonic()
        self._collect(MOST_UNDER_WAY)
        published = learner.publish(force, self._copy)
        if published is None:
            return False
        self._collect(MOST_UNDER_WAY - 1)
        self._under_way.append(self._thread.submit(self._hand_out, published, time.monotonic() - start_s))
        return True

    def close(self) -> None:
        """Waits until everything is out. Raises what failed."""
        try:
            self._collect(0)
        finally:
            self._thread.shutdown()

    def _copy(self, params: Any) -> Any:
        """On the devices, in the dtype that travels."""
        return weights_wire.snapshot(params, self._network.dtype)

    def _collect(self, most: int) -> None:
        """Waits until at most so many are under way."""
        while self._under_way and (len(self._under_way) > most or self._under_way[0].done()):
            self._under_way.popleft().result()

    def _hand_out(self, published: Published, waited_s: float) -> None:
        start_s = time.monotonic()
        block = weights_wire.to_bytes(published.params, self._network.dtype)
        self._blobs.publish(published.version, block)
        params = weights_wire.from_bytes(block, self._network)
        keep_published(self._wiring, self._policy, self._network, params, published.version)
        self._note(published, {"publish_s": waited_s, "publish_beside_s": time.monotonic() - start_s})

    def _note(self, published: Published, times: dict[str, float]) -> None:
        db = rundb.open_db(self._wiring.run_dir)  # a connection belongs to its thread
        try:
            rundb.add_metrics(db, published.step, {"policy_version": published.version, **times})
        finally:
            db.close()
