"""What a benchmark hands on: figures with their peers, as a table for people and JSON for the next reader."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
_HEAD = ("figure", "value", "unit", "target", "", "peer", "peer value")


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number.

    target: `>= 75`, `<= 1.3`, or empty where nothing was promised. peer: what it is compared with, empty for none.
    machine, command: filled in by `write` where empty.
    """

    figure: str
    value: float
    unit: str
    target: str = ""
    peer: str = ""
    peer_value: float | None = None
    machine: str = ""
    command: str = ""


def machine() -> str:
    """Cores, architecture, load, Python, and the accelerator if this process has imported jax. No host name."""
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    text = f"{os.cpu_count()} {platform.machine()} cores{load}, {platform.system()}, Python {platform.python_version()}"
    return text + _accelerator()


def _accelerator() -> str:
    if "jax" not in sys.modules:  # a benchmark without jax must not pay for it
        return ""
    import jax

    devices = jax.devices()
    return f", jax {jax.__version__} on {len(devices)} x {devices[0].device_kind}"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Flags that every benchmark has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="small sizes: does it run, is it of the right order")
    return made


def add_keep(parser: argparse.ArgumentParser) -> None:
    """The flag of benchmarks that run a whole fleet."""
    parser.add_argument("--keep", default="", help="folder for what is run; default: a temporary one")


@contextlib.contextmanager
def run_folder(keep: str) -> Iterator[Path]:
    """The named folder, or a temporary one that is gone afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(keep or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def command(name: str, argv: Sequence[str] | None) -> str:
    """What to type to measure it again; folders of this machine are left out."""
    words = list(sys.argv[1:] if argv is None else argv)
    return " ".join([f"python -m bench.{name}", *(_without_folder(word) for word in words)])


def _without_folder(word: str) -> str:
    flag, equals, value = word.rpartition("=")
    return flag + equals + (Path(value).name if os.path.isabs(value) else value)


def meets(figure: Figure) -> bool | None:
    """Whether the target is met; None without one. Raises ValueError for a target that is no bound."""
    if not figure.target:
        return None
    sign, _, bound = figure.target.partition(" ")
    if sign not in (">=", "<="):
        raise ValueError(f"{figure.figure}: expected a target such as '>= 75' or '<= 1.3', got {figure.target!r}")
    return figure.value >= float(bound) if sign == ">=" else figure.value <= float(bound)


def table(figures: Sequence[Figure]) -> str:
    """Aligned columns, one line a figure."""
    lines = [_HEAD, *(_cells(figure) for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)  # noqa: B905


def _cells(figure: Figure) -> tuple[str, ...]:
    verdict = {None: "", True: "met", False: "missed"}[meets(figure)]
    peer_value = "" if figure.peer_value is None else f"{figure.peer_value:.4g}"
    return (figure.figure, f"{figure.value:.4g}", figure.unit, figure.target, verdict, figure.peer, peer_value)


def write(name: str, figures: Sequence[Figure], command: str = "", folder: Path = RESULTS) -> Path:
    """Prints the table and replaces <folder>/<name>.json whole. Raises ValueError for a value that is not finite."""
    where = machine()
    full = [
        dataclasses.replace(
            one, machine=one.machine or where, command=one.command or command or f"python -m bench.{name}"
        )
        for one in figures
    ]
    _check(name, full)
    print(f"{name}: {where}\n{table(full)}\n", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path, new = folder / f"{name}.json", folder / f".{name}.{os.getpid()}.new"
    new.write_text(json.dumps([dataclasses.asdict(one) for one in full], indent=1, allow_nan=False) + "\n")
    os.replace(new, path)
    return path


def _check(name: str, figures: Sequence[Figure]) -> None:
    wrong = [one.figure for one in figures if not math.isfinite(one.value)]
    if wrong or not figures:
        raise ValueError(f"bench.{name}: expected finite figures, got {len(figures)}, not finite: {wrong}")
