"""Processes that the tests kill. Each prints one line when it is ready and then goes on until it dies."""

from __future__ import annotations

import sys
import threading

from cel_jax.bus.channels import ActionReply, InferenceFeed
from cel_jax.bus.home import Home, HomeLimits, serve_home
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.receiver import EpisodeReceiver
from cel_jax.bus.transport import Client, Server


def run_home(endpoint: str, lease_s: str) -> None:
    serve_home(endpoint, Identity("home", new_worker_id(), "home"), Home(HomeLimits(lease_s=float(lease_s))))
    print("ready", flush=True)
    threading.Event().wait(120)


def run_inference(endpoint: str, worker: str, hold: str) -> None:
    """Answers observations; with hold=yes it claims one batch and keeps it."""
    feed = InferenceFeed([Client(endpoint, Identity("gpu-0", worker, "inference"), "home")])
    while True:
        batch = feed.fetch(2, 0.05, 60.0)
        if hold == "yes" and batch:
            print("claimed", len(batch), flush=True)
            threading.Event().wait(120)
        feed.answer([ActionReply(request.id, 1, {"action": request.arrays["state"]}) for request in batch])


def run_receiver(endpoint: str, folder: str, stop_at: str) -> None:
    """Takes episodes; prints `reached` once a piece at `stop_at` or beyond comes in, and never answers that one."""
    receiver = EpisodeReceiver(folder, lambda *_: None, spare_bytes=0)
    handlers = receiver.handlers()

    def piece(request):
        if request.header["offset"] >= int(stop_at):
            print("reached", flush=True)
            threading.Event().wait(120)
        return receiver.piece(request)

    Server(endpoint, Identity("store-0", new_worker_id(), "store"), {**handlers, "piece": piece})
    print("ready", flush=True)
    threading.Event().wait(120)


if __name__ == "__main__":
    {"home": run_home, "inference": run_inference, "receiver": run_receiver}[sys.argv[1]](*sys.argv[2:])
