"""Several policies on the same scenes of the held-out robots: trials, the table of the paper's form, and run.db."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cel_jax.config import RunConfig
from cel_jax.data.episode import Outcome
from cel_jax.evaluation import rundb_evals
from cel_jax.evaluation.intervals import newcombe, paired
from cel_jax.evaluation.rollout import Rollout, open_rollout
from cel_jax.evaluation.rollout_pool import num_processes
from cel_jax.evaluation.rundb_evals import EvaluationRow
from cel_jax.evaluation.scene_policy import scene_policy
from cel_jax.evaluation.simulated import MakeSimulated, options_for
from cel_jax.evaluation.table import render
from cel_jax.evaluation.trials import RolloutOptions, Trial, TrialResult, make_trials
from cel_jax.models.policy import Policy
from cel_jax.models.saving import load_policy

Say = Callable[[str], None]
MOST_SLOTS = 16
REPORT_S = 10.0


class ComparisonError(ValueError):
    """Policies that cannot be compared on these robots; the message says why."""


def evaluate_policies(
    config: RunConfig,
    policies: Mapping[str, str | pathlib.Path],
    run_dir: str | pathlib.Path | None = None,
    say: Say = print,
    versions: Mapping[str, int] | None = None,
) -> str:
    """Runs `config.eval`'s trials under every policy {name: folder} and returns the table as text.

    The scenes and the robots are the same for all policies. Rows go to run_dir's run.db, where one is given.
    versions: the policies' versions for run.db. Raises `ComparisonError` where a policy does not fit the robots.
    """
    loaded = {name: load_policy(folder).with_sampling(config.policy) for name, folder in policies.items()}
    for name, policy in loaded.items():
        check_policy(config, name, policy)
    trials = make_trials(config.eval.robots, config.eval.first_robot, config.eval.trials_per_robot, config.eval.seed)
    rows: dict[str, list[EvaluationRow]] = {}
    with open_rollout(MakeSimulated(config.task), _options(config, len(trials))) as rollout:
        for name, policy in loaded.items():
            rows[name] = run_policy(rollout, config, name, policy, trials, say, (versions or {}).get(name, 0))
            if run_dir is not None:
                rundb_evals.append(pathlib.Path(run_dir) / "run.db", rows[name])
    return report(config, rows)


def check_policy(config: RunConfig, name: str, policy: Policy) -> None:
    """Raises `ComparisonError` where the policy was made for another robot, or for shorter chunks."""
    robot = MakeSimulated(config.task)(config.eval.first_robot).features
    mine = policy.features
    shapes = [(f.state_dim, f.action_dim, f.cameras, f.objects_shape) for f in (robot, mine)]
    if shapes[0] != shapes[1]:
        raise ComparisonError(f"policy {name}: made for {mine}; the robots of task {config.task.name} are {robot}")
    if policy.config.action_horizon < config.policy.execute_frames:
        raise ComparisonError(
            f"policy {name}: chunks of {policy.config.action_horizon} actions, of which {config.policy.execute_frames} "
            "are to be executed; give a smaller --config.policy.execute_frames"
        )


def _options(config: RunConfig, trials: int) -> RolloutOptions:
    """As many slots as the trials fill; two groups, so that the policy thinks while the other half moves."""
    processes = min(num_processes(RolloutOptions(processes=config.eval.processes)), trials)
    slots = min(MOST_SLOTS, math.ceil(trials / processes))
    return options_for(
        config.task,
        config.policy.execute_frames,
        processes=processes,
        slots_per_process=slots,
        groups=min(2, slots),
    )


def run_policy(
    rollout: Rollout, config: RunConfig, name: str, policy: Policy, trials: Sequence[Trial], say: Say, version: int = 0
) -> list[EvaluationRow]:
    """One policy's trials, in their order, with a line every few seconds."""
    done: list[bool] = []
    begin_s = told_s = time.monotonic()

    def count(result: TrialResult) -> None:
        nonlocal told_s
        done.append(result.success)
        if time.monotonic() - told_s > REPORT_S or len(done) == len(trials):
            told_s = time.monotonic()
            say(f"{name}: {sum(done)} of {len(done)} trials succeeded, {len(trials)} in all, {told_s - begin_s:.0f} s")

    results = rollout.run(scene_policy(policy, config.task.prompt), list(trials), count)
    return [_row(result, name, version, config.task.mode) for result in results]


def _row(result: TrialResult, policy: str, version: int, mode: str) -> EvaluationRow:
    return EvaluationRow(
        time_s=time.time(),
        policy=policy,
        policy_version=version,
        step=version,
        robot_id=result.robot_id,
        seed=result.seed,
        outcome=result.outcome,
        reason=result.reason,
        steps=result.steps,
        mode=mode,
    )


def report(config: RunConfig, rows: Mapping[str, Sequence[EvaluationRow]]) -> str:
    """The paper's Table 11 and, for every policy after the first, its difference from the first."""
    task, every = config.task, [row for mine in rows.values() for row in mine]
    title = f"{task.name} ({task.mode}), simulated robots that never collected; the same scenes for every policy"
    lines = [render(rundb_evals.robot_results(every), title)]
    first, *others = rows
    lines += [difference(other, rows[other], first, rows[first]) for other in others]
    return "\n".join(lines)


def difference(name_a: str, a: Sequence[EvaluationRow], name_b: str, b: Sequence[EvaluationRow]) -> str:
    """Rate of a minus rate of b: Newcombe's interval, and the scenes that only one of them solved."""
    won_a, won_b = (np.array([row.outcome is Outcome.SUCCESS for row in rows]) for rows in (a, b))
    interval = newcombe(int(won_a.sum()), len(a), int(won_b.sum()), len(b))
    pair = paired(won_a, won_b)
    return (
        f"{name_a} - {name_b}: {100 * interval.value:+.1f} points, 95 % (Newcombe) "
        f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}; scenes that only {name_a} solved {pair.only_a}, "
        f"only {name_b} {pair.only_b} (sign test p = {pair.p_value:.2g})"
    )
