"""A version on its way: the learner does not wait, folder and bus get the same bytes, half a version is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.bus.blobs import BlobServer
from cel_jax.bus.client import Client
from cel_jax.bus.identity import Identity
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.server import Server
from cel_jax.fert.learner import Published
from cel_jax.models import weights_wire
from cel_jax.models.policy import Policy
from cel_jax.recovery import rundb
from cel_jax.workers import inference, publishing
from cel_jax.workers.inference import Updates
from cel_jax.workers.published import current_policy
from cel_jax.workers.publishing import Publisher
from cel_jax.workers.wiring import TRAINING, Wiring
from tests.models.robots import noisy_params, tiny, tiny_policy

LEARNER = Identity(TRAINING, "training-1-ab", "training")
SERVER = Identity("inference-0", "inference-0-1-ab", "inference")


class OneVersion:
    """The part of a learner that publishes: version after version of random weights."""

    def __init__(self) -> None:
        self.policy_version = 0

    def publish(self, force: bool, copy) -> Published:  # type: ignore[no-untyped-def]
        self.policy_version += 1
        params = noisy_params(tiny("state"), seed=self.policy_version)
        return Published(self.policy_version, 10 * self.policy_version, copy(params))


def publisher(wiring: Wiring, blobs: BlobServer) -> Publisher:
    policy = tiny_policy("state", dtype="bfloat16")
    return Publisher(wiring, policy.without_params(), policy.config, blobs)


def test_a_version_reaches_bus_folder_and_record(wiring: Wiring) -> None:
    blobs, learner = BlobServer(), OneVersion()
    made = publisher(wiring, blobs)
    assert made.publish_due(learner) and made.publish_due(learner)  # type: ignore[arg-type]
    made.close()
    policy, version = current_policy(wiring)
    assert version == 2 and policy.params["state_proj"]["kernel"].dtype == jnp.float32  # a CPU computes in it
    want = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), noisy_params(tiny("state"), seed=2))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.float32)), policy.params, want)
    block = blobs._blobs[2].data
    jax.tree.map(np.testing.assert_array_equal, weights_wire.from_bytes(block, policy.config), want)
    db = rundb.open_db(wiring.run_dir)
    rows = db.execute("SELECT step, key, value FROM metrics ORDER BY step").fetchall()
    assert {(row["step"], row["key"]) for row in rows} >= {(10, "publish_s"), (20, "publish_beside_s")}
    assert policy.norm_stats.state_mean.tolist() == tiny_policy("state").norm_stats.state_mean.tolist()


def test_the_learner_waits_only_behind_two_versions_and_hears_of_a_failure(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, written = threading.Event(), []

    def slow(wiring: Wiring, policy: Policy, network: object, params: object, version: int) -> None:
        assert go.wait(30)
        written.append(version)
        if version == 2:
            raise OSError("no space left on device")

    monkeypatch.setattr(publishing, "keep_published", slow)
    made, learner = publisher(wiring, BlobServer()), OneVersion()
    for _ in range(2):
        assert made.publish_due(learner)  # type: ignore[arg-type]
    assert written == [], "the learner waited for a folder"
    threading.Thread(target=go.set).start()
    with pytest.raises(OSError, match="no space left"):  # at the next version, or at the end
        made.publish_due(learner)  # type: ignore[arg-type]
        made.close()
    assert written[:2] == [1, 2]
    made.close()


class Torn(BlobServer):
    """Sends pieces of a version and then damages or withholds one."""

    fault, done = "", 0

    def piece(self, request: Request) -> Reply:
        reply = super().piece(request)
        if not self.fault or not request.header["offset"]:
            return reply
        self.done += 1
        if self.fault == "bits":
            return Reply(reply.header, [bytes(reply.buffers[0][:-1]) + b"?"])
        if self.fault == "short":
            return Reply(reply.header, [reply.buffers[0][:-4]])
        self._blobs.pop(2, None)
        return super().piece(request)


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Torn, Updates]]:
    """A learner's server, and an inference worker's thread that follows it in small pieces."""
    blobs, stop = Torn(), threading.Event()
    updates = Updates(tiny_policy("state"), 0, stop)
    fetch = inference.fetch_blob
    monkeypatch.setattr(inference, "POLL_S", 0.01)
    monkeypatch.setattr(
        inference, "fetch_blob", lambda client, newer, deadline_s: fetch(client, newer, deadline_s, piece_bytes=4096)
    )
    with Server(f"ipc://{tmp_path}/training", LEARNER, blobs.handlers()) as server:
        with Client(server.endpoint, SERVER, TRAINING) as client:
            thread = threading.Thread(target=updates.follow, args=(client,))
            thread.start()
            yield blobs, updates
            stop.set()
            thread.join(30)


def block(seed: int) -> bytearray:
    return weights_wire.to_bytes(noisy_params(tiny("state"), seed=seed), "bfloat16")


def wait_for(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    ends_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_s, what
        threading.Event().wait(0.01)


@pytest.mark.parametrize("fault", ["bits", "short", "gone"])
def test_a_version_that_came_in_half_is_never_used(serving: tuple[Torn, Updates], fault: str) -> None:
    blobs, updates = serving
    blobs.publish(1, block(1))
    wait_for(lambda: updates.newest()[1] == 1, "version 1")
    before = updates.newest()[0]
    blobs.fault = fault
    blobs.publish(2, block(2))
    wait_for(lambda: blobs.done >= (1 if fault == "gone" else 20), "pieces with faults")
    assert updates.newest() == (before, 1)
    blobs.publish(3, block(3))
    blobs.fault = ""
    wait_for(lambda: updates.newest()[1] != 1, "version 3")
    assert updates.newest()[1] == 3
    leaf = noisy_params(tiny("state"), seed=3)["state_proj"]["kernel"].astype(jnp.bfloat16)
    np.testing.assert_array_equal(updates.newest()[0].params["state_proj"]["kernel"], leaf.astype(jnp.float32))
