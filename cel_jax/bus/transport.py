"""The one transport of SwarmLink: `Server` and `Client`, multiplexed calls over ROUTER and DEALER sockets."""

from cel_jax.bus.client import Client
from cel_jax.bus.deferred import Deferred
from cel_jax.bus.message import Limits, Reply, Request
from cel_jax.bus.server import Handler, Server

__all__ = ["Client", "Deferred", "Handler", "Limits", "Reply", "Request", "Server"]
