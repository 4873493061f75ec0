"""Typed ends of the `desk` channel: the station's, which reports and takes orders, and the operator's.

The desk itself (`hub.py`) is a worker of the run. Stations ask it again and again; it keeps each question open for a
moment, so that an order reaches its station at once.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cel_jax.bus.client import Client
from cel_jax.bus.errors import BusError, ClientClosed, WireError
from cel_jax.data.episode import Label, Outcome

DESK = "desk"  # the station's name, and the role of the operator's page
HOLD_S = 0.25  # how long the desk keeps a station's question open
MARGIN_S, RETRY_S = 1.5, 0.1
MAX_FINISHED = 64  # finished episodes in one report
# Phases of a station, as it reports them.
WAITS_FOR_START, RESETTING, RUNNING, WAITS_FOR_LABEL = "waiting for start", "resetting", "running", "waiting for label"
PAUSED, STANDS_STILL = "paused", "emergency stop"
_log = logging.getLogger(__name__)


class LinkDied(RuntimeError):
    """A station whose operator can no longer reach it; its worker ends and is started again."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """One episode that waits in the spool for its label."""

    episode: str
    worker: str
    robot: str
    start_s: float
    steps: int
    policy_version: int
    end_s: float
    suggests: str = ""  # what the robot's own side says


@dataclasses.dataclass(frozen=True)
class Report:
    """What a station says of itself. since_s: seconds in this phase. started: the last start that it followed.
    stopped: it stands still by order. ending: its worker ends."""

    phase: str
    episode: str = ""
    steps: int = 0
    policy_version: int = -1
    since_s: float = 0.0
    started: str = ""
    stopped: bool = False
    ending: bool = False
    finished: tuple[Finished, ...] = ()


@dataclasses.dataclass(frozen=True)
class Orders:
    """What the desk wants of a station. end: the episode that is to end now. labels: episode -> label, is it final."""

    stop: bool = False
    start: str = ""
    end: str = ""
    labels: Mapping[str, tuple[Label, bool]] = dataclasses.field(default_factory=dict)


def report_to_dict(report: Report) -> dict[str, Any]:
    return dataclasses.asdict(report)


def report_from_dict(values: Mapping[str, Any]) -> Report:
    """Raises WireError for anything that is no report."""
    try:
        finished = tuple(Finished(**one) for one in list(values.get("finished", ()))[:MAX_FINISHED])
        return Report(**{**values, "finished": finished})
    except (TypeError, AttributeError) as error:
        raise WireError(f"not a station's report: {error}") from error


def orders_to_dict(orders: Orders) -> dict[str, Any]:
    labels = {
        episode: {**dataclasses.asdict(label), "outcome": label.outcome.value, "final": final}
        for episode, (label, final) in orders.labels.items()
    }
    return {"stop": orders.stop, "start": orders.start, "end": orders.end, "labels": labels}


def orders_from_dict(values: Mapping[str, Any]) -> Orders:
    """Raises WireError for anything that is no set of orders."""
    try:
        labels = {
            str(episode): (
                Label(Outcome(said["outcome"]), said["author"], said["time_s"], said["reason"]),
                said["final"],
            )
            for episode, said in values["labels"].items()
        }
        return Orders(bool(values["stop"]), str(values["start"]), str(values["end"]), labels)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"not a desk's orders: {type(error).__name__}: {error}") from error


class StationLink:
    """The station's end, on a thread of its own. A station without word of its desk stops: nobody could stop it.

    report: what to say now. on_orders: called on this thread with every answer. on_stop: called at once, once for each
    stop; a robot that can halt from another thread does so here.
    """

    def __init__(
        self, client: Client, report: Callable[[], Report], on_orders: Callable[[Orders], None], silence_s: float,
        on_stop: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._client, self._report, self._on_orders, self._on_stop = client, report, on_orders, on_stop
        self._silence_s, self._heard_s = silence_s, time.monotonic()
        self.orders, self.failures, self._death = Orders(), 0, ""
        self._changed, self._closed, self._was_stopped = threading.Condition(), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="desk-link", daemon=True)

    def start(self) -> None:
        """From here on the callbacks are called."""
        self._heard_s = time.monotonic()
        self._thread.start()

    @property
    def silent(self) -> bool:
        """No word of the desk for `silence_s`, also where this end's own thread died."""
        return time.monotonic() - self._heard_s > self._silence_s

    @property
    def stop_due(self) -> bool:
        """By order, or because the desk is away."""
        return self.orders.stop or self.silent

    def check(self) -> None:
        """Raises LinkDied where this end's thread died: no order would arrive any more."""
        if self._death:
            raise LinkDied(f"the link to the desk died: {self._death}")

    def wait(self, wait_s: float) -> None:
        """Until the next answer, at most `wait_s`."""
        with self._changed:
            self._changed.wait(wait_s)

    def close(self) -> None:
        """One last exchange, so that a station that ends takes along what is final."""
        self._closed.set()
        self._thread.join(HOLD_S + 2 * MARGIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._turn()
            self._turn()
        except Exception as error:
            _log.exception("the link to the desk died")
            self._death, self._heard_s = f"{type(error).__name__}: {error}", -math.inf

    def _turn(self) -> None:
        try:
            reply = self._client.call("report", report_to_dict(self._report()), deadline_s=HOLD_S + MARGIN_S)
            self._take(orders_from_dict(reply.header))
        except ClientClosed:
            self._closed.set()
        except BusError as error:
            self.failures += 1
            _log.info("desk: %s", error)
            self._closed.wait(RETRY_S)
        self._halt_once()

    def _take(self, orders: Orders) -> None:
        self.orders, self._heard_s = orders, time.monotonic()
        self._halt_once()
        self._on_orders(orders)
        with self._changed:
            self._changed.notify_all()

    def _halt_once(self) -> None:
        due = self.stop_due
        if due and not self._was_stopped and self._on_stop is not None:
            self._on_stop()
        self._was_stopped = due


class DeskClient:
    """The operator's end. Every call ends within `deadline_s`; RemoteError carries the desk's refusal."""

    def __init__(self, client: Client, deadline_s: float = 5.0) -> None:
        self._client, self._deadline_s = client, deadline_s

    def tiles(self) -> dict[str, Any]:
        return self._call("tiles", {})

    def label(self, episode: str, outcome: str, author: str, reason: str = "") -> dict[str, Any]:
        """Returns once the label is on disk."""
        return self._call("label", {"episode": episode, "outcome": outcome, "author": author, "reason": reason})

    def undo(self, episode: str, author: str) -> dict[str, Any]:
        return self._call("undo", {"episode": episode, "author": author})

    def start(self, station: str, author: str) -> dict[str, Any]:
        return self._call("start", {"station": station, "author": author})

    def stop(self, stations: Sequence[str], author: str) -> dict[str, Any]:
        """Emergency stop; no stations: all of them."""
        return self._call("stop", {"stations": list(stations), "author": author})

    def release(self, stations: Sequence[str], author: str) -> dict[str, Any]:
        """Ends an emergency stop; no stations: all of them."""
        return self._call("release", {"stations": list(stations), "author": author})

    def _call(self, op: str, header: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._client.call(op, header, deadline_s=self._deadline_s).header)
