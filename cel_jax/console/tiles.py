"""What the operator's page shows of a station and of an episode, as plain values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cel_jax.console import labels
from cel_jax.console.desk import RUNNING
from cel_jax.console.labels import LabelPhase, LabelState
from cel_jax.recovery.status import StationStatus

if TYPE_CHECKING:
    from cel_jax.console.hub import Seen

STOPPED, STOPPING, AWAY = "emergency stop", "stopping", "away"


def tile(one: StationStatus, seen: Seen | None, stop: tuple[str, float] | None, fresh_s: float) -> dict[str, Any]:
    """One station. cause: of its last failure, as long as it matters; who stopped it, else."""
    silent_s = float("inf") if seen is None else time.monotonic() - seen.heard_s
    fresh = seen is not None and silent_s <= fresh_s
    made = {**bare(one), "state": AWAY, "stop": stop is not None}
    if fresh and seen is not None:
        report = seen.report
        made["state"] = report.phase
        made |= {"steps": report.steps, "policy_version": report.policy_version, "episode": report.episode}
        made["since_s"] = round(report.since_s, 1)
    if stop is not None:
        made["state"] = STOPPED if fresh and seen is not None and seen.report.stopped else STOPPING
        made["cause"] = f"stopped by {stop[0]}"
    elif fresh:
        made["cause"] = "" if made["state"] == RUNNING else made["cause"]
    return made


def bare(one: StationStatus) -> dict[str, Any]:
    """What the supervisor knows of a station, without its worker's own word."""
    words = one.cause.strip().splitlines() or [""]
    return {
        "station": one.name, "state": one.state, "supervisor": one.state, "failures": one.failures,
        "cause": words[-1][:300], "note": one.note, "episode": "", "steps": 0, "policy_version": -1, "since_s": 0.0,
        "stop": False,
    }  # fmt: skip


def finished(state: LabelState, now_s: float, deadline_s: float) -> dict[str, Any]:
    """One finished episode. left_s: to its deadline while it waits, to the end of undoing while its label is new."""
    limit_s = {LabelPhase.WAITING: deadline_s, LabelPhase.PENDING: labels.UNDO_S, LabelPhase.FINAL: 0.0}[state.phase]
    label = state.label
    return {
        "episode": state.episode, "station": state.station, "phase": state.phase.value, "suggests": state.suggests,
        "left_s": round(max(0.0, state.since_s + limit_s - now_s), 1),
        "outcome": "" if label is None else label.outcome.value, "author": "" if label is None else label.author,
        "reason": "" if label is None else label.reason,
    }  # fmt: skip
