"""One observation of 0.45 MB to a server and its actions back, over loopback TCP, plain and with CURVE.

Plain TCP is refused everywhere else; here it is opened, in these two processes alone, to compare with peers that do not
encrypt.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.queues import Queue as ProcessQueue
from pathlib import Path
from typing import Any

import numpy as np

import cel_jax.bus.client as client_module
import cel_jax.bus.endpoints as endpoints_module
from bench.latency_peers import ACTIONS, DEADLINE_S, checksum, make_arrays, messages_s, round_trips, summary
from cel_jax.bus.arrays import pack_arrays, unpack_arrays
from cel_jax.bus.client import Client
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.security import ClientCurve, ServerCurve, generate_keys, load_allow_list, load_keys, load_public
from cel_jax.bus.server import Server

PEERS = ("agentlace", "grpc")
SCRIPT = Path(__file__).with_name("latency_peers.py")


def open_plain_tcp() -> None:
    """This process may use TCP without keys."""
    allow: Callable[[str, bool], None] = lambda endpoint, has_keys: None  # noqa: E731
    endpoints_module.require_keys = client_module.require_keys = allow  # type: ignore[assignment]


def serve(folder: str, where: ProcessQueue[str], stop: Any) -> None:
    """A server that checksums what it gets; its keys are in `folder`, none there means plain."""
    path, curve = Path(folder), None
    if (path / "server.secret").exists():
        curve = ServerCurve(load_keys(path, "server"), load_allow_list(path))
    else:
        open_plain_tcp()
    actions = np.zeros(ACTIONS, np.float32)

    def observe(request: Request) -> Reply:
        arrays = unpack_arrays(request.header["arrays"], request.buffers)
        meta, buffers = pack_arrays({"actions": actions})
        return Reply({"crc": checksum(arrays.values()), "arrays": meta}, buffers)

    with Server("tcp://127.0.0.1:*", Identity("home", new_worker_id(), "home"), {"observe": observe}, curve) as server:
        where.put(server.endpoint)
        stop.wait()


@contextlib.contextmanager
def connected(with_keys: bool) -> Iterator[Client]:
    """A client of a server in another process."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        if with_keys:
            for name in ("server", "environment"):
                generate_keys(Path(folder), name)
        else:
            open_plain_tcp()
        where: ProcessQueue[str] = spawn.Queue()
        stop = spawn.Event()
        process = spawn.Process(target=serve, args=(folder, where, stop), daemon=True)
        process.start()
        try:
            endpoint = where.get(timeout=60.0)
            curve = client_curve(Path(folder)) if with_keys else None
            with Client(endpoint, Identity("robot-0", new_worker_id(), "environment"), "home", curve) as client:
                yield client
        finally:
            stop.set()
            process.join(10.0)
            process.kill()


def client_curve(folder: Path) -> ClientCurve:
    return ClientCurve(load_keys(folder, "environment"), load_public(folder, "server"))


def ours(with_keys: bool, samples: int, seconds: float) -> dict[str, Any]:
    """As `latency_peers.summary`."""
    arrays = make_arrays()
    expected = checksum(arrays.values())
    with connected(with_keys) as client:

        def submit() -> Callable[[], int]:
            meta, buffers = pack_arrays(arrays)
            future = client.submit("observe", {"arrays": meta}, buffers, DEADLINE_S)
            return lambda: int(future.result(DEADLINE_S).header["crc"])

        taken = round_trips(lambda: submit()(), expected, samples)
        rate = messages_s(submit, seconds)
    name, encryption = ("CURVE", "CURVE (Curve25519, XSalsa20-Poly1305)") if with_keys else ("plain", "none")
    return summary(name, taken, rate, encryption, "")


def peers(python: str, samples: int, seconds: float) -> list[dict[str, Any]]:
    """What each peer does in its own environment; one that is not there is named and left out."""
    return [found for name in PEERS if (found := _peer(python, name, samples, seconds))]


def _peer(python: str, name: str, samples: int, seconds: float) -> dict[str, Any] | None:
    words: Sequence[str] = (python, str(SCRIPT), name, f"--samples={samples}", f"--seconds={seconds}")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except OSError as error:
        print(f"{name}: skipped, no environment at {python} ({error.strerror})", flush=True)
        return None
    if done.returncode:
        print(f"{name}: skipped, {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
