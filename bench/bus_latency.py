"""Round trips of an observation through a home, alone and beside a transfer of episodes to a store.

    python -m bench.bus_latency [--quick] [--robots=4] [--requests=1000]

Robots, inference and the transfer run in processes of their own; inference answers at once, so this is the bus alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

import numpy as np

from bench import report
from bench.report import Figure
from cel_jax.bus.courier import Courier
from cel_jax.bus.endpoints import ipc_endpoint
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.latency import measure
from cel_jax.bus.receiver import EpisodeReceiver
from cel_jax.bus.server import Server
from cel_jax.bus.spool import Spool
from cel_jax.bus.transport import Client
from cel_jax.config import BusConfig

NAME = "bus_latency"
EPISODE_BYTES = 6_000_000  # 600 frames of three JPEGs of 96 px
WAITING = 3  # episodes in the spool: the courier is never idle
START_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--robots", type=int, default=4)
    parser.add_argument("--requests", type=int, default=0, help="of each robot; default 1000, 150 with --quick")
    parser.add_argument("--image_bytes", type=int, default=3000)
    flags = parser.parse_args(argv)
    sizes = (flags.robots, flags.requests or (150 if flags.quick else 1000), flags.image_bytes, 0.0)
    alone_s = measure(*sizes)
    with transfer() as sent_bytes:
        before = sent_bytes.value
        beside_s = measure(*sizes)
        moved_mb = (sent_bytes.value - before) / 1e6
    report.write(NAME, figures(alone_s, beside_s, moved_mb, flags.robots), report.command(NAME, argv))
    return 0


def figures(alone_s: np.ndarray, beside_s: np.ndarray, moved_mb: float, robots: int) -> list[Figure]:
    """Median and 99th percentile of both runs; the run without a transfer is the other's peer."""
    made = []
    for percent in (50, 99):
        alone_ms, beside_ms = (1e3 * float(np.percentile(times, percent)) for times in (alone_s, beside_s))
        made.append(Figure(f"round trip p{percent}, {robots} robots", alone_ms, "ms"))
        name = f"round trip p{percent}, {robots} robots, beside a transfer"
        made.append(Figure(name, beside_ms, "ms", "", "without transfer", alone_ms))
    return [*made, Figure("episodes moved meanwhile", moved_mb, "MB")]


@contextlib.contextmanager
def transfer() -> Iterator[Synchronized[int]]:
    """A station that sends episodes to a store all the while, at the fleet's rate limit; yields the bytes stored."""
    spawn = multiprocessing.get_context("spawn")
    stop, stored_bytes = spawn.Event(), spawn.Value("q", 0)
    with tempfile.TemporaryDirectory() as folder:
        process = spawn.Process(target=run_transfer, args=(folder, stop, stored_bytes), daemon=True)
        process.start()
        try:
            _await_first(stored_bytes, stop)
            yield stored_bytes  # type: ignore[misc]
        finally:
            stop.set()
            process.join(30.0)
            if process.is_alive():
                process.terminate()
                process.join(10.0)


def _await_first(stored_bytes: Synchronized[int], stop: Event) -> None:
    for _ in range(int(START_S / 0.1)):
        if stored_bytes.value:
            return
        stop.wait(0.1)
    raise TimeoutError(f"no episode reached the store within {START_S} s; the transfer process does not run")


def run_transfer(folder: str, stop: Event, stored_bytes: Synchronized[int]) -> None:
    """Store, spool and courier in one process, until the stop."""
    root, worker = pathlib.Path(folder), new_worker_id()
    spool, payload = Spool(root / "spool", worker), os.urandom(EPISODE_BYTES)

    def take(episode_id: str, path: pathlib.Path) -> None:
        stored_bytes.value += path.stat().st_size
        path.unlink()

    receiver = EpisodeReceiver(root / "store", take)
    endpoint, config = ipc_endpoint(root / "ipc", "store.sock"), BusConfig()
    limit_bytes_s, piece_bytes = config.transfer_limit_bytes_s, config.piece_bytes
    with Server(endpoint, Identity("store-0", new_worker_id(), "store"), receiver.handlers()):
        with Client(endpoint, Identity("robot-9", worker, "environment"), "store-0") as client:
            with Courier(spool, [client], limit_bytes_s=limit_bytes_s, piece_bytes=piece_bytes) as courier:
                _keep_full(spool, courier, payload, stop)


def _keep_full(spool: Spool, courier: Courier, payload: bytes, stop: Event) -> None:
    number = 0
    while not stop.wait(0.02):
        if len(spool.pending()) < WAITING:
            writer = spool.begin(f"e-{number}", len(payload))
            writer.append(payload)
            writer.finish()
            spool.label(f"e-{number}", b"success")
            courier.notify()
            number += 1


if __name__ == "__main__":
    raise SystemExit(main())
