"""A cluster of several raylets on this machine: workers on different nodes, a node that joins late, one that dies."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cel_jax.recovery.stations import Role, Station
from tests.recovery.fleets import FLEET, Fleet, gone, running, station

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
ON_RAY = dataclasses.replace(FLEET, recovery=dataclasses.replace(FLEET.recovery, placement="ray"))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    made.shutdown()


def at(node: str, name: str, role: Role = Role.ENVIRONMENT) -> Station:
    one = station(name, role)
    return dataclasses.replace(one, placement=dataclasses.replace(one.placement, node=node))


def test_workers_run_on_their_nodes_and_are_replaced_in_place(cluster, tmp_path: Path) -> None:
    for name in ("node-1", "node-2"):
        cluster.add_node(num_cpus=1, resources={name: 1})
    places = [at("local", "brain", Role.INFERENCE), at("node-1", "arm-0"), at("node-2", "arm-1")]
    with running(tmp_path, *places, fleet=ON_RAY) as fleet:
        before = fleet.wait_ready("brain", "arm-0", "arm-1", deadline_s=90.0)
        nodes = {name: agent_parent(fleet, name) for name in ("local", "node-1", "node-2")}
        assert len(set(nodes.values())) == 3, nodes
        os.kill(before["arm-0"].pid, signal.SIGKILL)
        fleet.wait(lambda: fleet.replaced(before["arm-0"]), 60.0)
        assert fleet.of("arm-1").pid == before["arm-1"].pid and fleet.of("brain").pid == before["brain"].pid
        assert fleet.stop(60.0) == 0 and not fleet.left()


def agent_parent(fleet: Fleet, node: str) -> int:
    """The process that started a node's agent: a Ray worker."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"cel_jax.recovery.agent" in words and node.encode() in words and str(fleet.run_dir).encode() in words:
            return parent
    return 0


def test_a_node_that_joins_late_gets_its_workers_then(cluster, tmp_path: Path) -> None:
    with running(tmp_path, at("local", "arm-0"), at("node-1", "arm-1"), fleet=ON_RAY) as fleet:
        first = fleet.wait_ready("arm-0", deadline_s=90.0)["arm-0"]
        assert not fleet.is_ready("arm-1")
        cluster.add_node(num_cpus=1, resources={"node-1": 1})
        fleet.wait_ready("arm-1", deadline_s=90.0)
        assert fleet.of("arm-0").pid == first.pid
        assert fleet.stop(60.0) == 0


def test_a_node_that_dies_stops_nobody_else_and_its_workers_come_back_with_it(cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, resources={"node-1": 1})
    with running(tmp_path, at("local", "arm-0"), at("node-1", "arm-1"), fleet=ON_RAY) as fleet:
        before = fleet.wait_ready("arm-0", "arm-1", deadline_s=90.0)
        cluster.remove_node(node, allow_graceful=False)
        fleet.wait(lambda: gone(before["arm-1"].pid), 60.0)
        cluster.add_node(num_cpus=1, resources={"node-1": 1})
        fleet.wait(lambda: fleet.replaced(before["arm-1"]), 120.0)
        assert fleet.of("arm-0").pid == before["arm-0"].pid
        incidents = fleet.db.execute("SELECT station FROM incidents").fetchall()
        assert [row["station"] for row in incidents] == ["arm-1"]
        assert fleet.stop(60.0) == 0 and not fleet.left()
