"""Real processes, really killed: SIGKILL and SIGSTOP of homes, inference workers and receivers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from cel_jax.bus import errors
from cel_jax.bus.channels import ObservationClient, StepId
from cel_jax.bus.courier import Courier
from cel_jax.bus.spool import Spool

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def launch():
    with contextlib.ExitStack() as stack:

        def start(*words: str, first_line: str = "") -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "tests.bus.processes", *words]
            process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            if first_line:
                assert process.stdout is not None and process.stdout.readline().startswith(first_line)
            return process

        yield start


def _infer(net, step: int, deadline_s: float = 20.0, worker: str = "w-1"):
    robot = ObservationClient(net.client())
    id = StepId("robot-0", worker, "e", step)
    return robot.infer(id, "t", {"state": np.full(2, step, np.float32)}, deadline_s)


def _kill(process, how=signal.SIGKILL) -> None:
    process.send_signal(how)
    if how == signal.SIGKILL:
        process.wait(10)
    else:
        os.waitpid(process.pid, os.WUNTRACED)  # until it really stands still


def test_killed_home_is_replaced_and_the_robot_gets_its_action(net, launch):
    home = launch("home", net.endpoint(), "10", first_line="ready")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(_infer, net, 5)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.3)  # nobody serves it yet: the observation waits in the home that dies
        _kill(home)
        launch("home", net.endpoint(), "10", first_line="ready")
        launch("inference", net.endpoint(), "g-1", "no")
        assert future.result(20).arrays["action"].tolist() == [5.0, 5.0]


def test_claims_of_a_killed_inference_worker_are_served_by_another(net, launch):
    launch("home", net.endpoint(), "1.0", first_line="ready")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        holder = launch("inference", net.endpoint(), "g-dead", "yes")
        future = pool.submit(_infer, net, 7)
        assert holder.stdout.readline() == "claimed 1\n"
        _kill(holder)
        start_s = time.monotonic()
        launch("inference", net.endpoint(), "g-new", "no")
        assert future.result(20).arrays["action"].tolist() == [7.0, 7.0]
        assert time.monotonic() - start_s < 10.0
    counts = net.client().call("stats", deadline_s=5).header["channels"]["observations"]["counts"]
    assert (counts["requeued"], counts["answered"]) == (1, 1)


def test_stopped_server_is_noticed_without_a_disconnect(net, launch):
    home = launch("home", net.endpoint(), "10", first_line="ready")
    client = net.client(heartbeat_s=0.2, peer_timeout_s=0.6)
    assert client.call("stats", deadline_s=5).header["fetches"] == 0
    _kill(home, signal.SIGSTOP)
    start_s = time.monotonic()
    with pytest.raises(errors.PeerLost):
        client.call("stats", deadline_s=60)
    assert time.monotonic() - start_s < 5.0


def test_transfer_resumes_after_its_receiver_is_killed(net, launch):
    folder, piece = net.folder.parent, 1000
    spool = Spool(folder / "spool", "w-1", spare_bytes=0)
    writer = spool.begin("e-1", 1)
    writer.append(b"x" * 50 * piece)
    writer.finish()
    spool.label("e-1", b"success")
    size = spool.pending()[0].size_bytes
    words = ("receiver", net.endpoint("store-0"), str(folder / "store-0"))
    dying = launch(*words, str(20 * piece), first_line="ready")
    stored = concurrent.futures.Future()
    client = net.client("store-0", expected="store-0")
    with Courier(
        spool, [client], piece_bytes=piece, max_backoff_s=0.2, on_stored=lambda *what: stored.set_result(what)
    ) as courier:
        assert dying.stdout.readline() == "reached\n"
        _kill(dying)
        launch(*words, str(1 << 30), first_line="ready")
        assert stored.result(20) == ("e-1", "store-0")
        assert courier.counters["sent_bytes"] <= size + 5 * piece  # only what was on its way went twice
    ledger = (folder / "store-0" / "stored.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in ledger] == ["e-1"]
    assert (folder / "store-0" / "incoming" / "e-1.episode").stat().st_size == size
