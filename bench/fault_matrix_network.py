"""Network faults of the fault matrix: a node in a network namespace of its own, and a proxy that loses and delays.

The kernel here has no `tc netem`; so the proxy holds back what a lossy link would: a lost TCP segment comes again after
a retransmission time-out, and everything behind it waits.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.fault_matrix_fleet import ROOT, GhostFleet, pause
from bench.fault_matrix_rows import Injection, Row

HOST, GUEST, SPACE = "10.213.7.1", "10.213.7.2", "cel-ghost"
PORT, PROXY_PORT = 5820, 5920
RETRANSMIT_S = (0.2, 0.4)
BLACKHOLE_S, LOSSY_S = 15.0, 10.0
KEYS = "network-keys"
NAMES = {
    "blackhole": "TCP to a node blackholed for 15 s",
    "loss_delay": "2 % loss and 25 ms delay each way for 10 s, through a proxy",
}


def possible() -> bool:
    """Namespaces need root and iproute2."""
    return os.getuid() == 0 and shutil.which("ip") is not None


class Proxy:
    """Forwards `count` TCP ports. While `lossy`, each piece waits `delay_s`, and one in 1/loss a retransmission."""

    def __init__(self, first_port: int, target_host: str, target_port: int, count: int, seed: int = 0) -> None:
        self.lossy, self._rng, self._stop = False, random.Random(seed), threading.Event()
        self.delay_s, self.loss = 0.025, 0.02
        self._servers = [socket.create_server(("127.0.0.1", first_port + k)) for k in range(count)]
        for server, port in zip(self._servers, range(target_port, target_port + count), strict=True):
            threading.Thread(target=self._accept, args=(server, (target_host, port)), daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()

    def _accept(self, server: socket.socket, target: tuple[str, int]) -> None:
        while not self._stop.is_set():
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(target, 5.0)
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
            source.settimeout(None)
            selector.register(source, selectors.EVENT_READ)
            while not self._stop.is_set():
                if not selector.select(1.0):
                    continue
                data = source.recv(65_536)
                if not data:
                    break
                if self.lossy:
                    lost = self._rng.random() < self.loss
                    pause(self.delay_s + (self._rng.uniform(*RETRANSMIT_S) if lost else 0.0))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Network:
    """The namespace with its link, the proxy, and the two joined nodes. Close it when the fleet is down."""

    def __init__(self, fleet: GhostFleet, stores: int) -> None:
        self._fleet, self._joined = fleet, list[subprocess.Popen[bytes]]()
        self.proxy = Proxy(PROXY_PORT, HOST, PORT, 2 + stores)

    def join(self, node: str, address: str, robots: Sequence[int], prefix: Sequence[str] = ()) -> None:
        folder = self._fleet.run_dir.parent
        keys = folder / KEYS
        invite = [
            f"--invite={node}",
            "--config=ghosts",
            f"--run={self._fleet.run_dir.name}",
            f"--config.bus.keys={keys}",
        ]
        subprocess.run([sys.executable, "-m", "launch.join", *invite], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        numbers = ",".join(map(str, robots))
        command = [
            *prefix, sys.executable, "-m", "launch.join", f"--fleet={address}", f"--keys={keys}/for-{node}",
            f"--node={node}", f"--robot_numbers={numbers}", f"--runs={folder / node}",
        ]  # fmt: skip
        log = open(folder / f"{node}.log", "w")  # noqa: SIM115  the child's
        self._joined.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))
        log.close()
        self._fleet.joined[node] = folder / node / f"{self._fleet.run_dir.name}-{node}"
        stations = [f"{node}-robot-{number:02d}" for number in robots]
        self._fleet.wait(lambda: self._fleet.acting(stations, 0.0), f"action of node {node}", 120.0)

    def leave(self) -> None:
        """The joined nodes go first, while the fleet still hears them."""
        for process in self._joined:
            process.send_signal(signal.SIGINT)
        for process in self._joined:
            process.wait(60)
        self._joined.clear()

    def close(self) -> None:
        for process in self._joined:
            process.kill()
            process.wait(10)
        self.proxy.close()
        tear_down()


def set_up() -> None:
    """A namespace with one link to this machine."""
    tear_down()
    for command in (
        f"ip netns add {SPACE}",
        "ip link add cel-g0 type veth peer name cel-g1",
        f"ip link set cel-g1 netns {SPACE}",
        f"ip addr add {HOST}/30 dev cel-g0",
        "ip link set cel-g0 up",
        f"ip netns exec {SPACE} ip addr add {GUEST}/30 dev cel-g1",
        f"ip netns exec {SPACE} ip link set cel-g1 up",
        f"ip netns exec {SPACE} ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)


def tear_down() -> None:
    for command in ("ip link del cel-g0", f"ip netns del {SPACE}"):
        subprocess.run(command.split(), check=False, stderr=subprocess.DEVNULL)


def start(folder: Path, robots: int, more: Sequence[str]) -> tuple[GhostFleet, Network]:
    """A fleet on TCP with a node behind the link and a node behind the proxy, two robots each."""
    set_up()
    where = (f"--config.bus.tcp_host={HOST}", f"--config.bus.tcp_port={PORT}", f"--config.bus.keys={folder / KEYS}")
    fleet = GhostFleet(folder, "network", robots, *where, *more)
    network = Network(fleet, stores=2)
    try:
        fleet.wait_all_acting()
        network.join("behind", f"{HOST}:{PORT}", (300, 301), ("ip", "netns", "exec", SPACE))
        network.join("lossy", f"127.0.0.1:{PROXY_PORT}", (400, 401))
    except BaseException:
        network.close()
        fleet.close()
        raise
    return fleet, network


def rows(network: Network) -> tuple[Row, ...]:
    """The rows of this network."""
    return (
        Row("blackhole", NAMES["blackhole"], lambda fleet, rng, quick: _blackhole(fleet)),
        Row("loss_delay", NAMES["loss_delay"],
            lambda fleet, rng, quick: _lossy(fleet, network)),
    )  # fmt: skip


def _blackhole(fleet: GhostFleet) -> Injection:
    route = ["ip", "netns", "exec", SPACE, "ip", "route"]
    subprocess.run([*route, "add", "blackhole", f"{HOST}/32"], check=True)
    pause(BLACKHOLE_S)
    subprocess.run([*route, "del", "blackhole", f"{HOST}/32"], check=True)
    now_s = time.monotonic()
    return _back(fleet, ("behind-robot-300", "behind-robot-301"), now_s)


def _lossy(fleet: GhostFleet, network: Network) -> Injection:
    network.proxy.lossy = True
    pause(LOSSY_S)
    network.proxy.lossy = False
    return _back(fleet, ("lossy-robot-400", "lossy-robot-401"), time.monotonic())


def _back(fleet: GhostFleet, victims: tuple[str, ...], now_s: float) -> Injection:
    """A first action or the end of a pause: both are answers to observations."""
    return Injection(now_s, victims, lambda: all(fleet.since(one, now_s, "act", "pause", "verdict") for one in victims))
