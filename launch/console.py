"""The operator's page of a running fleet: start episodes, label them, stop robots.

    python -m launch.fleet --config=NAME --config.fleet.labels=operator
    python -m launch.console --run=NAME [--runs=FOLDER] [--port=8080]

It answers on this machine alone. For others: --host=ADDRESS and a token of your own in the environment variable
CEL_CONSOLE_TOKEN; open http://ADDRESS:8080/#token=... . It may end and start at any time: labels are with the run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from absl import app, flags

from cel_jax.bus.client import Client
from cel_jax.bus.identity import Identity, new_worker_id
from cel_jax.console.desk import DESK, DeskClient
from cel_jax.console.server import PageServer
from cel_jax.recovery import wire
from cel_jax.workers import wiring
from launch.options import OptionError

TOKEN_VARIABLE, MIN_TOKEN_CHARS = "CEL_CONSOLE_TOKEN", 16


def define() -> None:
    """The flags of this entry point."""
    flags.DEFINE_string("run", "", "the run's name")
    flags.DEFINE_string("runs", "runs", "folder of all runs")
    flags.DEFINE_string("host", "127.0.0.1", f"address to answer on; beyond this machine it needs {TOKEN_VARIABLE}")
    flags.DEFINE_integer("port", 8080, "0: a free one", lower_bound=0)


def main(argv: list[str]) -> int:
    del argv
    asked = flags.FLAGS
    try:
        client = open_client(Path(asked.runs) / asked.run)
        server = PageServer(asked.host, asked.port, DeskClient(client), asked.run, token_of(os.environ))
    except (OptionError, FileNotFoundError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"operator's page of {asked.run}: http://{asked.host}:{server.server_address[1]}/", flush=True)
    server.serve_forever(poll_interval=0.2)
    server.server_close()
    client.close()
    return 0


def open_client(run_dir: Path) -> Client:
    """The line to the run's desk, with the key of the role `desk` where the run speaks TCP. Raises OptionError where
    there is no desk."""
    if not (run_dir / wiring.CONFIG_FILE).exists():
        raise OptionError(f"{run_dir}: no run; give --run=NAME, the name of a folder under --runs")
    config = wiring.load_config(run_dir)
    if config.fleet.labels != wiring.OPERATOR:
        raise OptionError(
            f"{run_dir.name} takes its labels from the {config.fleet.labels}: start the fleet with "
            "--config.fleet.labels=operator"
        )
    address = wiring.tcp_endpoint(config, DESK) or wire.endpoint(run_dir, f"bus-{DESK}")
    curve = wiring.client_curve(wiring.key_folder(config), DESK) if address.startswith("tcp://") else None
    return Client(address, Identity("console", new_worker_id(), DESK), DESK, curve, max_in_flight=64)


def token_of(environment: os._Environ[str] | dict[str, str]) -> str:
    """'' where there is none. Raises OptionError for one that could be guessed."""
    token = environment.get(TOKEN_VARIABLE, "")
    if token and (len(token) < MIN_TOKEN_CHARS or not token.isascii()):
        raise OptionError(f"{TOKEN_VARIABLE}: expected at least {MIN_TOKEN_CHARS} ASCII characters")
    return token


def cli() -> None:
    define()
    app.run(main)


if __name__ == "__main__":
    cli()
