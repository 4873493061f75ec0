"""When a failed worker is launched again: back-off and the limits of each tier. Pure; times are arguments."""

from __future__ import annotations

import dataclasses

from cel_jax.config import RecoveryConfig
from cel_jax.recovery.stations import Role


@dataclasses.dataclass(frozen=True)
class Tier:
    """timeout_s: silence after which a worker is terminated. restarts: None is no limit. start_failures: quick deaths
    before the first `ready` after which the run ends; None: never."""

    timeout_s: float
    restarts: int | None
    start_failures: int | None


START_FAILURES = 3


def tier_of(role: Role, config: RecoveryConfig) -> Tier:
    """The limits of a role. Environment workers restart for ever: a restart costs one episode at most."""
    if role is Role.ENVIRONMENT:
        return Tier(config.environment_timeout_s, None, None)
    timeouts = {
        Role.INFERENCE: config.inference_timeout_s,
        Role.TRAINING: config.training_timeout_s,
        Role.STORE: config.store_timeout_s,
        Role.HOME: config.store_timeout_s,
    }
    restarts = config.training_restarts if role is Role.TRAINING else config.inference_restarts
    return Tier(timeouts[role], restarts, START_FAILURES)


@dataclasses.dataclass(frozen=True)
class Failures:
    """A station's history: failures in total, in a row (a healthy stretch ends a row), and in a row at start."""

    total: int = 0
    in_a_row: int = 0
    at_start: int = 0
    retry_at_s: float = 0.0


def after_failure(
    failures: Failures, config: RecoveryConfig, now_s: float, lived_s: float, was_ready: bool
) -> Failures:
    """Counts a failure and sets the time of the next launch: at once, then backoff_s doubled up to max_backoff_s."""
    healthy = was_ready and lived_s >= config.max_backoff_s
    in_a_row = 1 if healthy else failures.in_a_row + 1
    at_start = 0 if was_ready else failures.at_start + 1
    return Failures(failures.total + 1, in_a_row, at_start, now_s + delay_s(in_a_row, config))


def delay_s(in_a_row: int, config: RecoveryConfig) -> float:
    """Seconds before launch after the n-th failure in a row: 0, b, 2b, 4b ... max."""
    if in_a_row <= 1:
        return 0.0
    return min(config.max_backoff_s, config.backoff_s * 2.0 ** min(in_a_row - 2, 60))


def exhausted(failures: Failures, tier: Tier) -> str:
    """Why a station must not be launched again; '' while it may."""
    if tier.start_failures is not None and failures.at_start >= tier.start_failures:
        return f"died {failures.at_start} times before it was ready"
    if tier.restarts is not None and failures.total > tier.restarts:
        return f"failed {failures.total} times, its tier allows {tier.restarts} restarts"
    return ""
