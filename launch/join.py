"""Joins a running fleet from another machine: its robots work here, under a node agent of their own.

    python -m launch.join --invite=lab2 --config=ghosts --run=NAME        # on the fleet's machine, once: makes the keys
    python -m launch.join --fleet=HOST:5710 --keys=FOLDER --node=lab2 --robot_numbers=200,201  # here

The fleet runs with --config.bus.tcp_host=ADDRESS. This machine only connects out. It keeps its robots' spools: what the
fleet has not got yet is delivered when they meet again, so the link, this process or the machine may fail at any time.
Ctrl-C takes the robots out of the run.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import zmq
from absl import flags

from cel_jax.bus.client import Client
from cel_jax.bus.errors import BusError
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.config import RunConfig, from_dict
from cel_jax.recovery import process, settings, wire
from cel_jax.recovery.supervised import Supervised
from cel_jax.workers import wiring
from launch import options

INVITE = flags.DEFINE_string("invite", "", "make the keys of a node with this name, on the fleet's machine")
FLEET = flags.DEFINE_string("fleet", "", "HOST:PORT of the fleet (its bus.tcp_host and bus.tcp_port)")
KEYS = flags.DEFINE_string("keys", "", "folder with this node's keys, as --invite made it")
NODE = flags.DEFINE_string("node", "", "name of this machine in the run, as --invite got it")
JOIN_ROBOTS = flags.DEFINE_list("robot_numbers", [], "numbers of the robots here; each is new to the fleet")
RUNS = flags.DEFINE_string("runs", "runs", "folder of all runs on this machine")
RUN = flags.DEFINE_string("run", "", "name of the run, with --invite; default: the configuration's")
ASK_S, RETRY_S, LEAVE_S, AGENT_EXIT_S = 10.0, 1.0, 5.0, 20.0


def main(argv: list[str]) -> int:
    del argv
    if INVITE.value:
        return invite(options.run_config())
    missing = [f"--{flag.name}" for flag in (FLEET, KEYS, NODE, JOIN_ROBOTS) if not flag.value]
    if missing:
        raise options.OptionError(f"{', '.join(missing)} missing; or --invite=NODE on the fleet's machine")
    return Joined().run()


def invite(config: RunConfig) -> int:
    """Makes `environment.<node>` and a folder with what that machine needs. The fleet takes new keys at once."""
    config.name = RUN.value or config.name
    folder, name = wiring.key_folder(config), f"environment.{INVITE.value}"
    if not (folder / f"{wiring.SERVER_KEY}.public").exists():
        raise options.OptionError(f"{folder}: no keys; start the fleet with --config.bus.tcp_host first")
    if not (folder / f"{name}.secret").exists():
        wiring.generate_keys(folder, name)
    out = folder / f"for-{INVITE.value}"
    out.mkdir(mode=0o700, exist_ok=True)
    for file in (f"{name}.secret", f"{name}.public", f"{wiring.SERVER_KEY}.public"):
        shutil.copy(folder / file, out / file)
    print(f"keys of node {INVITE.value}: copy {out} to that machine by a safe way, then delete it here", flush=True)
    return 0


class Joined:
    """This machine's part of the run: an agent, and the line to the fleet's gate."""

    def __init__(self) -> None:
        self._node, self._robots = NODE.value, [int(number) for number in JOIN_ROBOTS.value]
        host, _, port = FLEET.value.rpartition(":")
        self._host, self._port, self._stop = host, int(port), threading.Event()
        self._ended = threading.Event()
        identity = Identity(f"{self._node}-agent", new_worker_id(), "environment")
        curve = wiring.client_curve(Path(KEYS.value), f"environment.{self._node}")
        self._gate = Client(f"tcp://{host}:{self._port + 1}", identity, wiring.GATE, curve)

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        config = self._admit()
        run_dir = Path(RUNS.value) / f"{config.name}-{self._node}"
        lock = process.lock_file(wire.control_dir(run_dir) / "launcher.lock")
        self._prepare(run_dir, config)
        print(f"node {self._node} joins {config.name} with robots {self._robots}", flush=True)
        argv = [sys.executable, "-m", "cel_jax.recovery.agent", "--run_dir", str(run_dir), "--node", self._node]
        agent = Supervised(run_dir, f"agent-{self._node}", argv)
        try:
            return self._serve(run_dir, agent)
        finally:
            agent.end(AGENT_EXIT_S)
            self._gate.close()
            process.close(lock)

    def _admit(self) -> RunConfig:
        """The run's configuration with this machine's address book. Raises BusError where the gate refuses."""
        reply = self._gate.call("admit", {"robots": self._robots}, deadline_s=30.0)
        self._features = wiring.features_from_dict(dict(reply.header["features"]))
        config = from_dict(reply.header["config"])
        config.bus.tcp_host, config.bus.tcp_port = self._host, self._port
        config.bus.keys, config.bus.key_name = str(Path(KEYS.value).resolve()), f"environment.{self._node}"
        return config

    def _prepare(self, run_dir: Path, config: RunConfig) -> None:
        if config.fleet.robots_are == "ghost":
            from cel_jax.workers.fleet import prepare_ghosts

            if not Path(config.ghost.episodes).exists():  # a folder of the fleet's machine
                config.ghost.episodes = ""
            prepare_ghosts(run_dir, config)
        wiring.save_config(run_dir, config)
        wiring.save_features(run_dir, self._features)
        settings.save(run_dir, settings.FleetSettings(recovery=config.recovery))

    def _serve(self, run_dir: Path, agent: Supervised) -> int:
        """Carries questions and answers until the stop; a lost fleet is waited for, its robots hold still meanwhile."""
        carrier = threading.Thread(target=self._carry, args=(run_dir,), name="carrier", daemon=True)
        carrier.start()
        while not self._stop.wait(0.1):
            agent.step(time.monotonic(), 30.0)
            if agent.failure or not carrier.is_alive():
                print(f"node {self._node}: {agent.failure or 'its line to the fleet died'}", file=sys.stderr)
                return 1
        self._leave()
        ends_s = time.monotonic() + LEAVE_S  # the line stays open while the robots stop, so that the fleet hears of it
        while time.monotonic() < ends_s and not self._ended.wait(0.1):
            agent.step(time.monotonic(), 30.0)
        self._ended.set()
        carrier.join(RETRY_S)
        return 0

    def _leave(self) -> None:
        try:
            self._gate.call("leave", deadline_s=5.0)
        except BusError as error:
            print(f"the fleet does not answer ({error}); it will see this node as silent", file=sys.stderr)

    def _carry(self, run_dir: Path) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        agent = wire.connect_dealer(context, wire.endpoint(run_dir, f"agent-{self._node}"), "join")
        while not self._ended.is_set():
            try:
                self._carry_one(agent)
            except BusError as error:
                if error.kind != "deadline" and not self._ended.is_set():
                    print(f"node {self._node}: {error}; asking again", file=sys.stderr, flush=True)
                    self._stop.wait(RETRY_S)
                    self._admit_again()

    def _admit_again(self) -> None:
        """A fleet that was started anew does not know this node any more."""
        try:
            self._gate.call("admit", {"robots": self._robots, "again": True}, deadline_s=ASK_S)
        except BusError as error:
            print(f"node {self._node}: not admitted: {error}", file=sys.stderr, flush=True)

    def _carry_one(self, agent: zmq.Socket[bytes]) -> None:
        asked = self._gate.call("question", deadline_s=ASK_S)
        while agent.poll(0):
            agent.recv()  # an answer to a question that the controller gave up
        agent.send(bytes(asked.buffers[0]), zmq.DONTWAIT)
        if agent.poll(int(1e3 * RETRY_S)):
            self._gate.call("answer", {"to": asked.header["to"]}, [agent.recv()], ASK_S)


def cli() -> None:
    options.run(main)


if __name__ == "__main__":
    cli()
