"""Back-off and tier limits, without a clock."""

from __future__ import annotations

import pytest

from cel_jax.config import RecoveryConfig
from cel_jax.recovery.restart_policy import Failures, after_failure, delay_s, exhausted, tier_of
from cel_jax.recovery.stations import Desired, Role
from cel_jax.recovery.stop_order import next_role, wanted_now

CONFIG = RecoveryConfig(backoff_s=0.5, max_backoff_s=30.0, inference_restarts=2)


def test_first_restart_is_immediate_then_delays_double_up_to_the_limit() -> None:
    assert [delay_s(n, CONFIG) for n in range(1, 10)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert delay_s(100_000, CONFIG) == 30.0


def test_a_healthy_stretch_ends_a_row_but_not_the_count() -> None:
    failures = Failures()
    for _ in range(4):
        failures = after_failure(failures, CONFIG, 100.0, 1.0, True)
    assert (failures.in_a_row, failures.retry_at_s) == (4, 102.0)
    healthy = after_failure(failures, CONFIG, 200.0, 30.0, True)
    assert (healthy.in_a_row, healthy.total, healthy.retry_at_s) == (1, 5, 200.0)
    slow_start = after_failure(failures, CONFIG, 200.0, 3000.0, False)
    assert slow_start.in_a_row == 5


def test_environment_workers_restart_for_ever() -> None:
    assert exhausted(Failures(10**6, 10**6, 10**6), tier_of(Role.ENVIRONMENT, CONFIG)) == ""


@pytest.mark.parametrize("role", [Role.INFERENCE, Role.STORE, Role.HOME])
def test_other_tiers_are_limited(role: Role) -> None:
    tier = tier_of(role, CONFIG)
    assert exhausted(Failures(total=2), tier) == ""
    assert "failed 3 times" in exhausted(Failures(total=3), tier)
    assert exhausted(Failures(total=2, at_start=2), tier) == ""
    assert "before it was ready" in exhausted(Failures(total=3, at_start=3), tier)


def test_start_failures_count_only_in_a_row() -> None:
    failures = after_failure(Failures(at_start=2), CONFIG, 0.0, 1.0, True)
    assert failures.at_start == 0
    assert after_failure(failures, CONFIG, 0.0, 1.0, False).at_start == 1


def test_roles_stop_in_order() -> None:
    busy = {Role.STORE, Role.TRAINING, Role.INFERENCE}
    assert next_role(busy) is Role.TRAINING
    assert [wanted_now(role, busy) for role in (Role.ENVIRONMENT, Role.TRAINING)] == [Desired.OFFLINE] * 2
    assert [wanted_now(role, busy) for role in (Role.INFERENCE, Role.STORE, Role.HOME)] == [Desired.RUNNING] * 3
    assert next_role([]) is None and wanted_now(Role.HOME, []) is Desired.OFFLINE
