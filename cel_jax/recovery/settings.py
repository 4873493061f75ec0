"""What launcher, controller and agents of a run must agree on: one small file, so that any of them can restart."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import cel_jax
from cel_jax.config import RecoveryConfig
from cel_jax.recovery import wire
from cel_jax.recovery.stations import Role

STOP_SHARE = {Role.ENVIRONMENT: 0.2, Role.TRAINING: 0.4, Role.INFERENCE: 0.1, Role.STORE: 0.2, Role.HOME: 0.1}


@dataclasses.dataclass(frozen=True)
class FleetSettings:
    """stop_deadline_s: longest orderly stop, shared out by STOP_SHARE; then workers are killed. agent_timeout_s: a
    worker without word of its agent stops. hang_timeout_s: silence after which the launcher replaces a controller or
    agent. on_retire: `module:function` that the controller calls with the identity of every retired worker."""

    recovery: RecoveryConfig = dataclasses.field(default_factory=RecoveryConfig)
    stop_deadline_s: float = 60.0
    agent_timeout_s: float = 30.0
    hang_timeout_s: float = 30.0
    on_retire: str = ""

    def grace_s(self, role: Role) -> float:
        """How long a worker of this role may take to stop."""
        return self.stop_deadline_s * STOP_SHARE[role]


def save(run_dir: Path, settings: FleetSettings) -> None:
    write_atomically(_path(run_dir), json.dumps(dataclasses.asdict(settings), indent=1))


def load(run_dir: Path) -> FleetSettings:
    """Raises FileNotFoundError if the run was never launched."""
    values = json.loads(_path(run_dir).read_text())
    return FleetSettings(**{**values, "recovery": RecoveryConfig(**values["recovery"])})


def _path(run_dir: Path) -> Path:
    return wire.control_dir(run_dir) / "settings.json"


def write_atomically(path: Path, text: str) -> None:
    """All or nothing, on disk when it returns."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def child_env() -> dict[str, str]:
    """This process's environment with the package importable, output unbuffered and crashes traced."""
    root = str(Path(cel_jax.__file__).resolve().parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, *paths]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
