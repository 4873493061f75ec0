"""What ends an episode, and what ends the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from cel_jax.bus.client import Client
from cel_jax.bus.courier import Courier, TransferError
from cel_jax.bus.errors import ClientClosed, SpaceError
from cel_jax.bus.failures import Failure
from cel_jax.bus.identity import Identity
from cel_jax.bus.spool import Spool
from cel_jax.workers import environment
from cel_jax.workers.labelling import Labels
from cel_jax.workers.wiring import Wiring
from tests.workers.conftest import Context


class LoopContext(Context):
    """Stops after a number of episodes."""

    def __init__(self, run_dir: Path, role: str) -> None:
        super().__init__(run_dir, Identity("robot-00", "robot-00-1", role))
        self.gone: list[str] = []
        self.stop_event = self

    def paused(self) -> bool:
        return False

    def wait(self, seconds: float) -> None:
        """Of the stop event: the back-off after an abandoned episode ends the test."""
        self.stopping = True

    def give_up(self, reason: str) -> None:
        self.gone.append(reason)


class DeadSpool(Spool):
    def pending(self, hold_s: float = 0.0) -> list:
        raise ZeroDivisionError("broken")


def collect(monkeypatch: pytest.MonkeyPatch, wiring: Wiring, courier: object, error: Exception) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(environment, "run_one", fail)
    environment._collect(wiring, None, None, None, courier, Labels(None))  # type: ignore[arg-type]


class Alive:
    def check(self) -> None:
        return


def test_a_failed_request_ends_its_episode_and_a_dead_client_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wiring: Wiring
) -> None:
    context = LoopContext(tmp_path, "environment")
    robot = Wiring(context, tmp_path, wiring.config)  # type: ignore[arg-type]
    collect(monkeypatch, robot, Alive(), SpaceError("full"))
    assert [kind for kind, _ in context.reports] == ["episode abandoned"]
    context.stopping = False
    with pytest.raises(ClientClosed):
        collect(monkeypatch, robot, Alive(), ClientClosed("its io thread died"))


def test_a_dead_courier_ends_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wiring: Wiring) -> None:
    failures: list[Failure] = []
    robot = Wiring(LoopContext(tmp_path, "environment"), tmp_path, wiring.config)  # type: ignore[arg-type]
    courier = Courier(DeadSpool(tmp_path / "spool", "w"), [], on_failure=failures.append)
    courier._thread.join(5.0)
    with pytest.raises(TransferError, match="ZeroDivisionError: broken"):
        collect(monkeypatch, robot, courier, SpaceError("never"))
    assert [one.kind for one in failures] == ["thread_died"]


@pytest.mark.parametrize(("role", "ends"), [("store", True), ("home", True), ("environment", False)])
def test_a_dead_bus_thread_ends_whoever_would_not_notice(role: str, ends: bool, tmp_path: Path, wiring: Wiring) -> None:
    context = LoopContext(tmp_path, role)
    worker = Wiring(context, tmp_path, wiring.config)  # type: ignore[arg-type]
    worker.report(Failure("peer_lost", "home", "ipc://x", "gone"))
    assert not context.gone
    worker.report(Failure("thread_died", "home", "ipc://x", "ValueError: y"))
    assert bool(context.gone) is ends


def test_a_client_whose_thread_died_frees_what_it_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_expire", lambda self: 1 / 0)
    failures: list[Failure] = []
    me = Identity("robot-00", "w", "environment")
    client = Client(f"ipc://{tmp_path}/none", me, "home", on_failure=failures.append)
    client._io._thread.join(5.0)
    with pytest.raises(ClientClosed):
        client.call("x")
    client.close()
    assert [one.kind for one in failures] == ["thread_died"]
    with pytest.raises(OSError):
        client._io.waker.wake()
