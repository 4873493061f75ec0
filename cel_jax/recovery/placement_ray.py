"""Node agents on a Ray cluster, placed by custom resources.

    ray start --head                                              # the launcher's machine: node `local`
    ray start --address=HEAD:6379 --resources='{"node-1": 1}'     # each other node, now or while the run goes on

An agent of node NAME goes where a resource NAME is offered, and waits while it is nowhere. Every node needs the run's
folder under the same path and the same Python. Needs the `ray` extra.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import ray
except ImportError as error:
    raise ImportError("recovery.placement='ray' needs Ray: pip install 'cel-jax[ray]'") from error

from cel_jax.recovery import process, settings
from cel_jax.recovery.placement import Child

SHARE = 0.001  # of the node's resource: it says where, not how much
LOCAL_NODE = "local"
NODE_LOST = -signal.SIGKILL


class _Host:
    """The actor: one command as a child of a Ray worker on the node; it dies with that."""

    def __init__(self, argv: list[str], env: dict[str, str], log: str) -> None:
        self._child: subprocess.Popen[bytes] = process.start(argv, env, Path(log))

    def poll(self) -> int | None:
        return self._child.poll()

    def signal(self, number: int) -> None:
        process.signal_process(self._child.pid, signal.Signals(number))


class RayChild:
    """The launcher's side of one actor. It never waits for Ray: what Ray has not answered yet is asked for later."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._question = actor, actor.poll.remote()
        self._code: int | None = None
        self.placed = False

    def poll(self) -> int | None:
        if self._code is None and ray.wait([self._question], timeout=0)[0]:
            self._take()
        return self._code

    def _take(self) -> None:
        try:
            self._code, self.placed = ray.get(self._question), True
        except ray.exceptions.RayActorError:  # the node is lost, and with it everything that ran there
            self._code = NODE_LOST
        if self._code is None:
            self._question = self._actor.poll.remote()
        else:
            ray.kill(self._actor)

    def terminate(self) -> None:
        if self._code is None and self.placed:
            self._actor.signal.remote(int(signal.SIGTERM))

    def kill(self) -> None:
        """Ends the actor's process, with which its child ends."""
        if self._code is None:
            ray.kill(self._actor)

    def wait(self, timeout_s: float) -> int:
        ends_s = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > ends_s:
                raise TimeoutError(f"an agent on Ray has not ended within {timeout_s:g} s")
            ray.wait([self._question], timeout=min(1.0, timeout_s))
        return code


class RayStarter:
    """Joins the cluster at RAY_ADDRESS, or the one of this machine. Raises ConnectionError where there is none."""

    def __init__(self) -> None:
        path = settings.child_env()["PYTHONPATH"]
        address = os.environ.get("RAY_ADDRESS", "auto")
        ray.init(address, runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False, logging_level="ERROR")
        self._host = ray.remote(max_restarts=0, max_task_retries=0, num_cpus=0)(_Host)

    def start(self, node: str, argv: Sequence[str], env: dict[str, str], log: Path) -> Child:
        where = {} if node == LOCAL_NODE else {"resources": {node: SHARE}}
        if node == LOCAL_NODE:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            here = ray.get_runtime_context().get_node_id()
            where["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
        return RayChild(self._host.options(**where).remote(list(argv), env, str(log)))

    def close(self) -> None:
        ray.shutdown()
