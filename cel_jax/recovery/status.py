"""The fleet at a glance: what the progress line and the operator's page show."""

from __future__ import annotations

import collections
import dataclasses


@dataclasses.dataclass(frozen=True)
class StationStatus:
    """One station. state: starting, ready, paused, waiting, stopping, dying, safe stop, offline, finished or failed.
    failures: since its agent started. cause: of the last failure. retry_at_s, updated_s: seconds since 1970."""

    name: str
    role: str
    desired: str
    state: str
    worker: str
    pid: int
    failures: int
    cause: str
    note: str
    retry_at_s: float
    updated_s: float


@dataclasses.dataclass(frozen=True)
class Status:
    """phase: running, stopping or ended. failure: why the run failed, '' while it has not. time_s: of this reading."""

    phase: str
    failure: str
    stations: tuple[StationStatus, ...]
    time_s: float

    def of(self, name: str) -> StationStatus:
        """Raises KeyError naming the stations that exist."""
        for station in self.stations:
            if station.name == name:
                return station
        raise KeyError(f"no station {name}; there are {[station.name for station in self.stations]}")

    def ready(self, role: str) -> int:
        """How many stations of a role serve now."""
        return sum(station.state == "ready" for station in self.stations if station.role == role)


def progress_line(status: Status) -> str:
    """`environment 4/4 ready, training 1/1 ready; arm-3 waiting (failed 7 times: RuntimeError: no camera)`."""
    wanted = [station for station in status.stations if station.desired != "offline"]
    total = collections.Counter(station.role for station in wanted)
    parts = [f"{role} {status.ready(role)}/{count} ready" for role, count in total.items()]
    troubles = [_trouble(station, status.time_s) for station in wanted if station.failures and station.state != "ready"]
    return "; ".join(filter(None, (", ".join(parts), *troubles)))


def _trouble(station: StationStatus, now_s: float) -> str:
    words = station.cause.strip().splitlines() or [""]
    wait_s = max(0.0, station.retry_at_s - now_s)
    retry = f", next try in {wait_s:.0f} s" if station.state == "waiting" else ""
    return f"{station.name} {station.state} (failed {station.failures} times: {words[-1]}{retry})"
