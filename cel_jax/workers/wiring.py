"""What every worker needs of its run: the configuration, the addresses, and clients that know whom they talk to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from cel_jax.bus.client import Client
from cel_jax.bus.failures import Failure
from cel_jax.config import RunConfig, from_dict, to_dict
from cel_jax.data.episode import Features, features_from_dict
from cel_jax.recovery import wire
from cel_jax.recovery.beat import WorkerContext
from cel_jax.recovery.settings import write_atomically

HOME, TRAINING = "home", "training"
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
        return wire.endpoint(self.run_dir, f"bus-{name}")

    def client(self, station: str, endpoint: str = "") -> Client:
        """A client of a station; its failures are reported up."""
        address = self.endpoint(endpoint or station)
        return Client(address, self.context.identity, station, on_failure=self.report)

    def report(self, failure: Failure) -> None:
        self.context.report(failure.kind, f"{failure.station} at {failure.endpoint}: {failure.detail}")

    @property
    def policy_folder(self) -> Path:
        """The last published policy."""
        return self.run_dir / "policy"

    @property
    def start_folder(self) -> Path:
        """The policy that the run began with."""
        return self.run_dir / "init" / "policy"
