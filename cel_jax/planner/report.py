"""The table of an evaluation: success with Wilson intervals, and every policy against the one before it, in pairs."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from cel_jax.evaluation.intervals import paired, wilson
from cel_jax.planner.trials import TrialOutcome, success_rate

Trials = Mapping[str, Sequence[TrialOutcome]]  # policy -> its trials, the same ones in the same order


def render(trials: Trials) -> str:
    """Rates by policy and by number of parts, then the paired comparisons."""
    groups = sorted({_parts(o.task) for outcomes in trials.values() for o in outcomes})
    head = ["planner".ljust(10), *(f"{n} parts" for n in groups), "all", "95 % (Wilson)", "invalid"]
    lines = ["  ".join(head)]
    for name, outcomes in trials.items():
        shares = [success_rate([o for o in outcomes if _parts(o.task) == n]) for n in groups]
        valid = [o.success for o in outcomes if o.success is not None]
        rate = wilson(sum(valid), len(valid))
        cells = [f"{share:7.3f}" for share in shares]
        span = f"{rate.low:.3f} to {rate.high:.3f}"
        row = [name.ljust(10), *cells, f"{rate.value:.3f}", span.rjust(13), str(len(outcomes) - len(valid)).rjust(7)]
        lines.append("  ".join(row))
    names = list(trials)
    lines += [compare(a, trials[a], b, trials[b]) for b, a in itertools.pairwise(names)]
    return "\n".join(lines)


def compare(name_a: str, a: Sequence[TrialOutcome], name_b: str, b: Sequence[TrialOutcome]) -> str:
    """a against b over the episodes that are valid in both. Raises ValueError where they are not the same episodes."""
    if [_key(o) for o in a] != [_key(o) for o in b]:
        raise ValueError(
            f"{name_a} and {name_b} were not evaluated on the same episodes; run launch.planner_eval again"
        )
    both = [(x.success, y.success) for x, y in zip(a, b, strict=True) if None not in (x.success, y.success)]
    won_a, won_b = (np.array(column, bool) for column in zip(*both, strict=True))
    pair = paired(won_a, won_b)
    return (
        f"{name_a} - {name_b}: {won_a.mean() - won_b.mean():+.3f} over {len(both)} paired episodes; only {name_a} "
        f"{pair.only_a}, only {name_b} {pair.only_b}, sign test p = {pair.p_value:.2g}"
    )


def write(path: pathlib.Path, seed: int, trials: Trials) -> None:
    """All trials as JSON, one list a policy."""
    rows = {
        name: [[o.task, o.initial_state, o.attempt, o.success] for o in outcomes] for name, outcomes in trials.items()
    }
    path.write_text(json.dumps({"seed": seed, "trials": rows}))


def read(path: pathlib.Path) -> dict[str, list[TrialOutcome]]:
    """The inverse of `write`."""
    rows = json.loads(path.read_text())["trials"]
    return {name: [TrialOutcome(*row) for row in outcomes] for name, outcomes in rows.items()}


def _parts(task: str) -> int:
    return task.split("/")[0].count("+") + 1


def _key(outcome: TrialOutcome) -> tuple[str, int, int]:
    return outcome.task, outcome.initial_state, outcome.attempt
