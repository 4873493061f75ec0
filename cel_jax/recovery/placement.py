"""Where a run's node agents (and with them their workers) are started: on this machine, or where Ray finds their node.

Ray only places. It restarts nothing: an agent that ended, or whose node died, is started again by the launcher.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cel_jax.recovery import process

LOCAL, RAY = "local", "ray"


class Child(Protocol):
    """A started command. placed: False while it still waits for its node."""

    @property
    def placed(self) -> bool: ...

    def poll(self) -> int | None:
        """Its exit code (negative: a signal), None while it runs or waits."""
        ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout_s: float) -> int:
        """Raises TimeoutError where it has not ended by then."""
        ...


class Starter(Protocol):
    """Starts commands on nodes by name."""

    def start(self, node: str, argv: Sequence[str], env: dict[str, str], log: Path) -> Child: ...

    def close(self) -> None: ...


class LocalChild:
    """A child of this process, which dies with it."""

    placed = True

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self.pid = child.pid

    def poll(self) -> int | None:
        return self._child.poll()

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        self._child.kill()

    def wait(self, timeout_s: float) -> int:
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout_s:g} s") from error


class LocalStarter:
    """Every node is this machine."""

    def start(self, node: str, argv: Sequence[str], env: dict[str, str], log: Path) -> Child:
        return LocalChild(process.start(argv, env, log))

    def close(self) -> None:
        return


def open_starter(placement: str) -> Starter:
    """The run's starter. Raises ValueError for an unknown placement, ImportError or ConnectionError for one that
    cannot be had."""
    if placement == LOCAL:
        return LocalStarter()
    if placement == RAY:
        from cel_jax.recovery.placement_ray import RayStarter

        return RayStarter()
    raise ValueError(f"recovery.placement={placement!r}: expected {LOCAL!r} or {RAY!r}")
