"""Which kernels a call spends its time in, read from a profile."""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import jax


def table(call: Callable[[], Any], rows: int = 25) -> str:
    """Lines of milliseconds, launches and name, longest first, of one call that is compiled already."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            jax.block_until_ready(call())
        events = _device_events(pathlib.Path(folder))
    total: dict[str, float] = collections.defaultdict(float)
    count: dict[str, int] = collections.defaultdict(int)
    for event in events:
        name = re.sub(r"[._]\d+$", "", event["name"])[:90]
        total[name] += event["dur"] / 1e3
        count[name] += 1
    longest = sorted(total, key=lambda name: -total[name])[:rows]
    head = f"  kernels: {sum(total.values()):.2f} ms in {sum(count.values())} launches"
    return "\n".join([head, *(f"  {total[name]:9.3f} ms {count[name]:6d} x {name}" for name in longest)])


def _device_events(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Complete events of the accelerator's streams; none on a CPU."""
    files = sorted(folder.rglob("*.json.gz"))
    if not files:
        return []
    with gzip.open(files[0], "rt") as file:
        events = json.load(file)["traceEvents"]
    streams = {
        (event["pid"], event.get("tid"))
        for event in events
        if event.get("name") == "thread_name" and str(event["args"].get("name", "")).startswith("Stream")
    }
    return [event for event in events if event.get("ph") == "X" and (event["pid"], event.get("tid")) in streams]
