"""Robots that ask for actions at a steady pace, each with a spool and a courier of its own as in the environment
worker, a home, an inference worker and a store: all in processes of their own, over the sockets that a fleet uses."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue as ProcessQueue
from pathlib import Path
from typing import Any

import numpy as np

from cel_jax.bus.channels import ActionReply, InferenceFeed, ObservationClient, StepId
from cel_jax.bus.client import Client
from cel_jax.bus.courier import Courier
from cel_jax.bus.endpoints import ipc_endpoint
from cel_jax.bus.home import serve_home
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.receiver import EpisodeReceiver
from cel_jax.bus.server import Server
from cel_jax.bus.spool import Spool
from cel_jax.config import BusConfig

DEADLINE_S = 30.0
PIECES = 200  # an episode is written frame by frame


@dataclasses.dataclass(frozen=True)
class Load:
    """robots ask `rate_hz` times a second with `image_bytes` x 3; while streaming each also labels an episode of
    `episode_bytes` every `episode_every_s`."""

    robots: int = 8
    rate_hz: float = 20.0
    image_bytes: int = 6000
    episode_bytes: int = 3_000_000
    episode_every_s: float = 4.0


@dataclasses.dataclass
class Shared:
    """What the processes of one measurement have in common. stop: of the robots; end: of everything else. filled,
    stored: bytes labelled so far, and taken by the store."""

    folder: str
    streaming: Any
    stop: Any
    end: Any
    ready: Any
    times: ProcessQueue[np.ndarray]
    filled: Any
    stored: Any

    def endpoint(self, name: str) -> str:
        return ipc_endpoint(Path(self.folder) / "ipc", f"{name}.sock")


def run_robot(shared: Shared, load: Load, number: int) -> None:
    """Asks at its pace until the stop; puts float64 [N, 2]: when it asked, how long that took, seconds."""
    station, worker = f"robot-{number}", new_worker_id()
    me = Identity(station, worker, "environment")
    spool = Spool(Path(shared.folder) / "spool" / station, worker)
    limit_bytes_s = BusConfig().transfer_limit_bytes_s
    with Client(shared.endpoint("home"), me, "home") as home, Client(shared.endpoint("store"), me, "store-0") as store:
        with Courier(spool, [store], limit_bytes_s=limit_bytes_s) as courier:
            filler = threading.Thread(target=_fill, args=(shared, load, spool, courier), daemon=True)
            filler.start()
            taken = _ask(shared, load, ObservationClient(home), station, worker)
            filler.join(DEADLINE_S)
    shared.times.put(np.asarray(taken, np.float64))


def _ask(shared: Shared, load: Load, robot: ObservationClient, station: str, worker: str) -> list[tuple[float, float]]:
    images = {name: [os.urandom(load.image_bytes)] for name in ("head", "left_wrist", "right_wrist")}
    arrays = {"images": images, "state": np.zeros(16, np.float32)}
    taken, step, due_s = [], 0, time.monotonic() + np.random.default_rng().uniform(0, 1 / load.rate_hz)
    while not shared.stop.is_set():
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s += 1 / load.rate_hz
        start_s = time.monotonic()
        robot.infer(StepId(station, worker, "e", step), "measure", arrays, DEADLINE_S)
        taken.append((start_s, time.monotonic() - start_s))
        step += 1
        if step == 20:
            shared.ready.release()
    return taken


def _fill(shared: Shared, load: Load, spool: Spool, courier: Courier) -> None:
    """Records and labels episodes while streaming is on."""
    part, number = os.urandom(load.episode_bytes // PIECES), 0
    while not shared.stop.is_set():
        if not shared.streaming.wait(0.1):
            continue
        begin_s = time.monotonic()
        name = f"{number}-{spool.worker}"
        writer = spool.begin(name, 2 * load.episode_bytes)
        for _ in range(PIECES):
            writer.append(part)
            shared.stop.wait(load.episode_every_s / PIECES)
        writer.finish()
        spool.label(name, b"success")
        with shared.filled.get_lock():
            shared.filled.value += load.episode_bytes
        courier.notify()
        number += 1
        shared.stop.wait(max(0.0, load.episode_every_s - (time.monotonic() - begin_s)))


def run_inference(shared: Shared, load: Load) -> None:
    """Answers every batch at once with a chunk of 30 actions of 16 numbers."""
    chunk = {"action": np.zeros((30, 16), np.float32)}
    with Client(shared.endpoint("home"), Identity("gpu-0", new_worker_id(), "inference"), "home") as client:
        feed = InferenceFeed([client])
        while not shared.end.is_set():
            batch = feed.fetch(load.robots, 0.0, 0.5)
            feed.answer([ActionReply(request.id, 1, chunk) for request in batch])


def run_home(shared: Shared) -> None:
    with serve_home(shared.endpoint("home"), Identity("home", new_worker_id(), "home")):
        shared.end.wait()


def run_store(shared: Shared) -> None:
    def take(episode_id: str, path: Path) -> None:
        with shared.stored.get_lock():
            shared.stored.value += path.stat().st_size
        path.unlink()

    receiver = EpisodeReceiver(Path(shared.folder) / "store", take)
    with Server(shared.endpoint("store"), Identity("store-0", new_worker_id(), "store"), receiver.handlers()):
        shared.end.wait()


@contextlib.contextmanager
def running(load: Load) -> Iterator[Shared]:
    """Everything up and every robot answered; at the end `shared.times` holds each robot's samples."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        shared = Shared(
            folder, spawn.Event(), spawn.Event(), spawn.Event(), spawn.Semaphore(0), spawn.Queue(), spawn.Value("q", 0),
            spawn.Value("q", 0),
        )  # fmt: skip
        jobs: list[tuple[Any, tuple]] = [(run_home, (shared,)), (run_store, (shared,)), (run_inference, (shared, load))]
        jobs += [(run_robot, (shared, load, number)) for number in range(load.robots)]
        processes = [spawn.Process(target=target, args=args, daemon=True) for target, args in jobs]
        for process in processes:
            process.start()
        try:
            for _ in range(load.robots):
                if not shared.ready.acquire(timeout=120.0):
                    raise TimeoutError("not every robot was answered within 120 s")
            yield shared
        finally:
            shared.stop.set()
            shared.end.set()
            for process in processes:
                process.join(5.0)
                process.kill()


def collect(shared: Shared, robots: int) -> np.ndarray:
    """Stops the robots; all samples, float64 [N, 2], in order of time."""
    shared.stop.set()
    samples = np.concatenate([shared.times.get(timeout=60.0) for _ in range(robots)])
    return samples[np.argsort(samples[:, 0])]
