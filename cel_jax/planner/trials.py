"""Paired trials: several planners on the same tasks, initial states and attempts, with the same luck of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cel_jax.planner.collection import Collector
from cel_jax.planner.config import PlannerConfig
from cel_jax.planner.policy import Planner
from cel_jax.planner.records import Sampling
from cel_jax.planner.sites import make_table
from cel_jax.planner.splits import EVALUATION_STATES, VALIDATION_STATES, every_spec


@dataclasses.dataclass(frozen=True)
class TrialOutcome:
    """One evaluated episode. success None: the infrastructure failed, so that it tells nothing."""

    task: str
    initial_state: int
    attempt: int
    success: bool | None


def evaluate(config: PlannerConfig, planner: Planner, seed: int, split: str = "evaluation") -> list[TrialOutcome]:
    """All tasks on the split's initial states. split: `evaluation` or `validation`."""
    states = {"evaluation": EVALUATION_STATES, "validation": VALIDATION_STATES}[split]
    specs = every_spec(make_table(config.harness).tasks(), states, config.eval.attempts)
    sampling = evaluation_sampling(config)
    _, reports = Collector(config, planner).collect(specs, planner.version, sampling, 1_000_003 + seed)
    return [TrialOutcome(r.task, r.initial_state, r.attempt, bool(r.reward > 0) if r.valid else None) for r in reports]


def evaluation_sampling(config: PlannerConfig) -> Sampling:
    """The configured sampling."""
    e = config.eval
    return Sampling(e.temperature, e.top_p, e.top_k, e.presence_penalty, config.model.max_response_tokens)


def success_rate(outcomes: Sequence[TrialOutcome]) -> float:
    """Share of valid trials that succeeded; 0 without any."""
    valid = [o.success for o in outcomes if o.success is not None]
    return sum(valid) / len(valid) if valid else 0.0
