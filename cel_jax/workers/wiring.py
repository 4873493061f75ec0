"""What every worker needs of its run: the configuration, the addresses, and clients that know whom they talk to."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from cel_jax.bus.client import Client
from cel_jax.bus.failures import Failure
from cel_jax.bus.message import Limits
from cel_jax.bus.security import (
    ClientCurve,
    ServerCurve,
    generate_keys,
    load_allow_list,
    load_keys,
    load_public,
)
from cel_jax.bus.server import Handler, Server, Tick
from cel_jax.config import RunConfig, from_dict, to_dict
from cel_jax.console.desk import DESK
from cel_jax.data.episode import Features, features_from_dict
from cel_jax.recovery import wire
from cel_jax.recovery.beat import WorkerContext
from cel_jax.recovery.settings import write_atomically
from cel_jax.recovery.stations import Role

HOME, TRAINING, GATE = "home", "training", "gate"
SERVER_KEY, ROLE_KEYS = "server", ("environment", "inference", "home")
OPERATOR = "operator"  # of `fleet.labels`: a person labels, on the operator's page
CONFIG_FILE, FEATURES_FILE = "config.json", "features.json"


def store_name(index: int) -> str:
    return f"store-{index}"


def inference_name(index: int) -> str:
    return f"inference-{index}"


def robot_station(index: int) -> str:
    return f"robot-{index:02d}"


def save_config(run_dir: Path, config: RunConfig) -> None:
    """Writes the run's one configuration file."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir / CONFIG_FILE, json.dumps(to_dict(config), indent=1))


def load_config(run_dir: Path) -> RunConfig:
    """Raises FileNotFoundError where there is no run."""
    return from_dict(json.loads((run_dir / CONFIG_FILE).read_text()))


def save_features(run_dir: Path, features: Features) -> None:
    """What the run's robots give, for workers that cannot open one (the store's environment has no simulator)."""
    write_atomically(run_dir / FEATURES_FILE, json.dumps(dataclasses.asdict(features), indent=1))


def load_features(run_dir: Path) -> Features:
    """The inverse of `save_features`."""
    return features_from_dict(json.loads((run_dir / FEATURES_FILE).read_text()))


def ghost_episodes(run_dir: Path, config: RunConfig) -> Path:
    """The folder of the episodes that ghost robots replay."""
    return Path(config.ghost.episodes) if config.ghost.episodes else run_dir / "init" / "tapes"


def tcp_endpoint(config: RunConfig, name: str) -> str:
    """The address of the home, the gate, a store's intake or the desk; '' for everything that stays on one machine."""
    bus, stores = config.bus, config.fleet.stores
    served = (HOME, GATE, *(f"{store_name(index)}-intake" for index in range(stores)), DESK)
    if not bus.tcp_host or name not in served:
        return ""
    return f"tcp://{bus.tcp_host}:{bus.tcp_port + served.index(name)}"


def key_folder(config: RunConfig) -> Path:
    """Where this machine keeps the run's keys; outside of the run's folder, which people share."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))
    return Path(config.bus.keys) if config.bus.keys else base / "cel_jax" / "keys" / config.name


def client_curve(folder: Path, name: str) -> ClientCurve:
    """A client's keys. Raises FileNotFoundError naming the key and how to get one."""
    try:
        return ClientCurve(load_keys(folder, name), load_public(folder, SERVER_KEY))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no key {name!r} in {folder}: `python -m launch.join --invite=NODE` on the fleet's machine makes it"
        ) from error


def prepare_keys(config: RunConfig) -> None:
    """Makes the keys that a run over TCP lacks; existing ones stay."""
    folder = key_folder(config)
    for name in (SERVER_KEY, *ROLE_KEYS, *((DESK,) if config.fleet.labels == OPERATOR else ())):
        if config.bus.tcp_host and not (folder / f"{name}.secret").exists():
            generate_keys(folder, name)


@dataclasses.dataclass(frozen=True)
class Wiring:
    """A worker's run folder, configuration and context."""

    context: WorkerContext
    run_dir: Path
    config: RunConfig

    @classmethod
    def of(cls, context: WorkerContext) -> Wiring:
        return cls(context, context.run_dir, load_config(context.run_dir))

    def endpoint(self, name: str) -> str:
        """TCP for what robots need, where the run has an address; else a socket in the run's folder."""
        return tcp_endpoint(self.config, name) or wire.endpoint(self.run_dir, f"bus-{name}")

    def client(self, station: str, endpoint: str = "") -> Client:
        """A client of a station, for this worker's life; its failures are reported up, and it follows the station's
        epochs."""
        address = self.endpoint(endpoint or station)
        made = Client(address, self.context.identity, station, self._client_curve(address), on_failure=self.report)
        self.context.peers.follow(station, made.advance_epoch)
        return made

    def server(
        self, name: str, handlers: Mapping[str, Handler], curve: ServerCurve | None = None, tick: Tick | None = None,
        limits: Limits = Limits(),  # noqa: B008  frozen
    ) -> Server:  # fmt: skip
        """A server of this worker's station at the address `name`, under the epoch of its connection group."""
        made = Server(
            self.endpoint(name), self.context.identity, handlers, curve, tick=tick,
            epoch=self.context.settings.epoch, on_failure=self.report, limits=limits,
        )  # fmt: skip
        self.context.peers.follow(self.context.identity.station, made.advance_epoch)
        return made

    def _client_curve(self, address: str) -> ClientCurve | None:
        if not address.startswith("tcp://"):
            return None
        name = self.config.bus.key_name or self.context.identity.role
        return client_curve(key_folder(self.config), name)

    def server_curve(self, name: str, roles: Mapping[str, frozenset[str]]) -> ServerCurve | None:
        """Keys and allow-list of a server of this run; None where `name` is not served over TCP."""
        if not tcp_endpoint(self.config, name):
            return None
        folder = key_folder(self.config)
        return ServerCurve(load_keys(folder, SERVER_KEY), load_allow_list(folder), roles)

    def report(self, failure: Failure) -> None:
        """Sends a failure up. A dead bus thread ends the worker, except at a robot: there the main loop meets it and
        stops the robot first."""
        detail = f"{failure.station} at {failure.endpoint}: {failure.detail}"
        self.context.report(failure.kind, detail)
        if failure.kind == "thread_died" and self.context.identity.role != Role.ENVIRONMENT.value:
            self.context.give_up(detail)

    @property
    def policy_folder(self) -> Path:
        """The last published policy."""
        return self.run_dir / "policy"

    @property
    def start_folder(self) -> Path:
        """The policy that the run began with."""
        return self.run_dir / "init" / "policy"
