"""The latencies of a run's channels in run.db: workers note what they measured, whoever reads adds it up."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from cel_jax.bus.histogram import Histogram
from cel_jax.recovery import rundb

KIND = "latency"


def note(db: sqlite3.Connection, station: str, worker: str, measured: Mapping[str, Histogram]) -> None:
    """Writes what was added since the last note, by channel; nothing where nothing was."""
    counts = {channel: found for channel, one in measured.items() if (found := one.take())}
    if counts:
        rundb.add_event(db, KIND, json.dumps(counts), station, worker)


def read(db: sqlite3.Connection) -> dict[str, Histogram]:
    """Channel -> the whole run's distribution."""
    found: dict[str, Histogram] = {}
    for event in rundb.events(db, [KIND]):
        for channel, counts in json.loads(event["detail"]).items():
            part = Histogram({int(index): int(count) for index, count in counts.items()})
            found.setdefault(channel, Histogram()).update(part)
    return found
