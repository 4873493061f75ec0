"""The channel home of a node: holds the queues of observations. `python -m cel_jax.workers.home`"""

from __future__ import annotations

import queue

from cel_jax.bus.client import Client
from cel_jax.bus.home import Home, HomeLimits
from cel_jax.bus.identity import Identity, Registry
from cel_jax.recovery.beat import WorkerContext
from cel_jax.workers.wiring import HOME, Wiring

WAIT_S = 0.2
ROLES = {
    "request": frozenset({"environment"}),
    "fetch": frozenset({"inference"}),
    "answer": frozenset({"inference"}),
    "retire": frozenset({"home"}),
    "stats": frozenset({"home"}),
}  # who may ask for what over TCP


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context, bus = wiring.context, wiring.config.bus
    registry, retired = Registry(), queue.SimpleQueue[Identity]()
    home = Home(HomeLimits(lease_s=bus.lease_s), registry)
    context.peers.feed(registry)
    curve = wiring.server_curve(HOME, ROLES)
    with wiring.server(HOME, home.handlers(), curve, home.tick), wiring.client(HOME) as own:
        context.peers.on_retire(retired.put)
        context.ready()
        while not context.stop_event.wait(WAIT_S):
            context.progress()
            while not retired.empty():
                _retire(own, retired.get())
    context.close()


def _retire(own: Client, peer: Identity) -> None:
    """Drops what a dead worker queued and queues again what it had claimed.

    Through the home's own address, so that the queues are touched by the server's thread alone.
    """
    own.call("retire", {"worker": peer.worker}, deadline_s=5.0)


if __name__ == "__main__":
    main()
