"""Servers and clients that are closed after each test."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

from cel_jax.bus.endpoints import ipc_endpoint
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.bus.transport import Client, Server


class Net:
    """Makes endpoints, servers and clients."""

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.folder, self._stack = folder, stack

    def endpoint(self, name: str = "a") -> str:
        return ipc_endpoint(self.folder, f"{name}.sock")

    def server(self, handlers, name="a", station="home", **more) -> Server:
        identity = Identity(station, new_worker_id(), "home")
        return self._stack.enter_context(Server(self.endpoint(name), identity, handlers, **more))

    def client(self, name="a", station="robot-0", expected="home", worker="", **more) -> Client:
        identity = Identity(station, worker or new_worker_id(), "environment")
        return self._stack.enter_context(Client(self.endpoint(name), identity, expected, **more))


@pytest.fixture
def net(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Net(tmp_path / "ipc", stack)
