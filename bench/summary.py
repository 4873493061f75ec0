"""Writes the last figures of every benchmark into bench/README.md, from bench/results/*.json.

python -m bench.summary
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = "## Last figures\n"


def write_figures() -> None:
    readme = HERE / "README.md"
    head = readme.read_text().split(MARK)[0]
    parts = [section(path) for path in sorted((HERE / "results").glob("*.json"))]
    readme.write_text(head + MARK + "\n" + "\n".join(parts))


def section(path: Path) -> str:
    """One benchmark as Markdown: its commands, its machine, its table."""
    found = json.loads(path.read_text())
    if isinstance(found, dict):
        return matrix(path.stem, found)
    rows: list[dict[str, Any]] = found
    commands = sorted({row["command"] for row in rows})
    machines = sorted({row["machine"] for row in rows})
    lines = [f"### {path.stem}", "", *(f"`{command}`" for command in commands), "", "; ".join(machines), ""]
    lines += ["| figure | value | target | peer |", "|---|---|---|---|"]
    lines += [table_row(row) for row in rows]
    return "\n".join([*lines, ""])


def matrix(name: str, found: dict[str, Any]) -> str:
    """The fault matrix: a row for each kind of fault."""
    lines = [f"### {name}", "", f"`{found['command']}`", "", found["machine"], ""]
    lines += ["| fault | injections | others stopped | lost | doubled | stale | back after, s (median) | cause shown |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in found["rows"]:
        back = f"{statistics.median(row['rejoin_s']):.2f}" if row["rejoin_s"] else ""
        cells = [
            row["what"],
            len(row["rejoin_s"]),
            row["others_stopped"],
            row["lost"],
            row["duplicated"],
            "-" if row["stale"] is None else row["stale"],
        ]
        cells += [back, _causes(row["causes"])]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])


def _causes(causes: list[str]) -> str:
    """What operators read, without what differs from robot to robot."""
    return "; ".join(sorted({cause.split(":")[0].split(".")[-1][:40] for cause in causes}))


def table_row(row: dict[str, Any]) -> str:
    """`| figure | value unit | target | peer: value |`."""
    value = f"{number(row['value'])} {row['unit']}".strip()
    peer = row["peer"] + (f": {number(row['peer_value'])}" if row["peer_value"] is not None else "")
    return f"| {row['figure']} | {value} | {row['target'] or ''} | {peer} |".replace("\n", " ")


def number(value: Any) -> str:
    """Three digits, or the value's own text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    write_figures()
