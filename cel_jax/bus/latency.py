"""Measures a request through a home: robots in processes of their own, one inference process that answers at once.

python -m cel_jax.bus.latency --robots=4 --requests=1000 --image_bytes=3000
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import tempfile
import time
from multiprocessing.queues import Queue as ProcessQueue

import numpy as np

from cel_jax.bus.channels import ActionReply, InferenceFeed, ObservationClient, StepId
from cel_jax.bus.endpoints import ipc_endpoint
from cel_jax.bus.home import serve_home
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.transport import Client

_WARM = 50
_DEADLINE_S = 30.0


def run_robot(endpoint: str, number: int, requests: int, image_bytes: int, times_s: ProcessQueue[list[float]]) -> None:
    """Sends requests one after the other and puts their round-trip times, in seconds."""
    station, worker = f"robot-{number}", new_worker_id()
    with Client(endpoint, Identity(station, worker, "environment"), "home") as client:
        robot, taken = ObservationClient(client), []
        images = {name: [os.urandom(image_bytes)] for name in ("head", "left_wrist", "right_wrist")}
        arrays = {"images": images, "state": np.zeros(16, np.float32)}
        for step in range(requests + _WARM):
            start_s = time.perf_counter()
            robot.infer(StepId(station, worker, "e", step), "measure", arrays, _DEADLINE_S)
            taken.append(time.perf_counter() - start_s)
    times_s.put(taken[_WARM:])


def run_inference(endpoint: str, robots: int, batch_timeout_s: float) -> None:
    """Answers every batch at once with a chunk of 30 actions of 16 numbers."""
    chunk = {"action": np.zeros((30, 16), np.float32)}
    with Client(endpoint, Identity("gpu-0", new_worker_id(), "inference"), "home") as client:
        feed = InferenceFeed([client])
        while batch := feed.fetch(robots, batch_timeout_s, 10.0):
            feed.answer([ActionReply(request.id, 1, chunk) for request in batch])


def measure(robots: int, requests: int, image_bytes: int, batch_timeout_s: float) -> np.ndarray:
    """Round-trip times of all requests, float64 [robots * requests], seconds."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        endpoint = ipc_endpoint(pathlib.Path(folder) / "ipc", "home.sock")
        with serve_home(endpoint, Identity("home", new_worker_id(), "home")):
            times_s: ProcessQueue[list[float]] = spawn.Queue()
            inference = spawn.Process(target=run_inference, args=(endpoint, robots, batch_timeout_s), daemon=True)
            inference.start()
            jobs = [(endpoint, number, requests, image_bytes, times_s) for number in range(robots)]
            processes = [spawn.Process(target=run_robot, args=job, daemon=True) for job in jobs]
            for process in processes:
                process.start()
            taken = [times_s.get(timeout=600.0) for _ in processes]
            for process in processes:
                process.join(10.0)
            inference.terminate()
            inference.join(10.0)
    return np.concatenate([np.asarray(part) for part in taken])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--robots", type=int, default=4)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--image_bytes", type=int, default=3000)
    parser.add_argument("--batch_timeout_s", type=float, default=0.0)
    flags = parser.parse_args()
    times_ms = 1e3 * measure(flags.robots, flags.requests, flags.image_bytes, flags.batch_timeout_s)
    p50, p99 = np.percentile(times_ms, [50, 99])
    print(f"{flags.robots} robots, {len(times_ms)} requests, {flags.image_bytes} bytes an image")
    print(f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {times_ms.max():.2f} ms")


if __name__ == "__main__":
    main()
