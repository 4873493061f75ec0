"""In which order a run ends: robots first, then training (its last checkpoint), inference, stores, homes. Pure."""

from __future__ import annotations

from collections.abc import Collection

from cel_jax.recovery.stations import STOP_ORDER, Desired, Role


def next_role(busy: Collection[Role]) -> Role | None:
    """The role that is to stop now; None when nothing runs any more."""
    return next((role for role in STOP_ORDER if role in busy), None)


def wanted_now(role: Role, busy: Collection[Role]) -> Desired:
    """OFFLINE for the roles whose turn has come (or passed), RUNNING for the later ones."""
    turn = next_role(busy)
    if turn is None or STOP_ORDER.index(role) <= STOP_ORDER.index(turn):
        return Desired.OFFLINE
    return Desired.RUNNING
