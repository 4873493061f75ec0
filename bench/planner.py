"""Does the planner learn? Supervised start and RL of the 0.3 M planner on the text tabletop, several seeds.

    python -m bench.planner [--quick] [--seeds=3] [--nomask]

For each seed: teacher, base, SFT with rewriting, SFT that only masks (equal steps), RL from the rewritten start. All
four are evaluated on the same 480 episodes (48 tasks, ten initial states that never train). Pooled over the seeds:
rates, paired differences with the sign test, and what RL's own checks counted. One more round is collected with
bfloat16 rollouts, to see the importance weights at work.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import report
from bench.report import Figure
from cel_jax.evaluation.intervals import newcombe, paired, wilson
from cel_jax.planner import sft
from cel_jax.planner.config import PlannerConfig
from cel_jax.planner.policy import Planner
from cel_jax.planner.rl import RlRun, RoundResult
from cel_jax.planner.trials import TrialOutcome, evaluate
from configs.planner_text import get_config

NAME = "planner"
Outcomes = dict[str, list[bool]]  # planner -> success, the same episodes in the same order


@dataclasses.dataclass
class Seed:
    """What one seed gave. minutes: by part."""

    outcomes: Outcomes
    rounds: list[RoundResult]
    bfloat16: dict[str, float]
    minutes: dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    seeds = [run_seed(_config(seed, flags.quick), flags.mask) for seed in range(flags.seeds)]
    report.write(NAME, figures(seeds), report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> Any:
    parser = report.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nomask", dest="mask", action="store_false", help="leave the ablation out")
    return parser.parse_args(argv)


def _config(seed: int, quick: bool) -> PlannerConfig:
    config = dataclasses.replace(get_config(), seed=seed)
    if quick:
        config.sft.teacher_episodes, config.sft.steps = 60, 20
        config.rl.rounds, config.rl.groups, config.rl.attempts = 1, 4, 3
    return config


def run_seed(config: PlannerConfig, mask: bool) -> Seed:
    minutes: dict[str, float] = {}
    shown = timed(minutes, "teacher", lambda: sft.teacher_episodes(config))
    base = sft.base_planner(config, shown)
    planners = {"base": base, "sft": timed(minutes, "sft", lambda: supervised(config, base, shown, "rewrite"))}
    if mask:
        planners["mask only"] = timed(minutes, "mask", lambda: supervised(config, base, shown, "mask"))
    with tempfile.TemporaryDirectory() as folder:
        run = RlRun(config, planners["sft"], Path(folder), say)
        planners["rl"] = timed(minutes, "rl", run.run)
    outcomes = {
        name: timed(minutes, f"evaluate {name}", functools.partial(tried, config, p)) for name, p in planners.items()
    }
    return Seed(outcomes, run.history, timed(minutes, "bfloat16", lambda: rounded(config, planners["rl"])), minutes)


def supervised(config: PlannerConfig, base: Planner, shown: list[Any], mode: str) -> Planner:
    config = dataclasses.replace(config, sft=dataclasses.replace(config.sft, mode=mode))
    return sft.train(config, base, sft.target_turns(config, base, shown, say), say)


def tried(config: PlannerConfig, planner: Planner) -> list[bool]:
    return [succeeded(one) for one in evaluate(config, planner, config.seed)]


def succeeded(outcome: TrialOutcome) -> bool:
    """Raises RuntimeError for an invalid episode: nothing but the table can fail here."""
    if outcome.success is None:
        raise RuntimeError(f"invalid episode {outcome.task}, state {outcome.initial_state}; see the log above")
    return outcome.success


def rounded(config: PlannerConfig, planner: Planner) -> dict[str, float]:
    """The metrics of one more round whose rollouts compute in bfloat16."""
    model = dataclasses.replace(config.model, rollout_dtype="bfloat16")
    once = dataclasses.replace(config, model=model, rl=dataclasses.replace(config.rl, rounds=1))
    with tempfile.TemporaryDirectory() as folder:
        run = RlRun(once, planner, Path(folder), say)
        run.run()
    return run.history[0].metrics


def timed(minutes: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    begin = time.monotonic()
    made = work()
    minutes[name] = (time.monotonic() - begin) / 60
    say(f"{name}: {60 * minutes[name]:.0f} s")
    return made


def say(text: str) -> None:
    print(text, flush=True)


def figures(seeds: list[Seed]) -> list[Figure]:
    pooled = {name: np.concatenate([one.outcomes[name] for one in seeds]) for name in seeds[0].outcomes}
    made = [Figure("seeds, 480 episodes each", len(seeds), "")]
    for name, target in (("base", "<= 0.05"), ("sft", ">= 0.5"), ("mask only", ""), ("rl", "")):
        if name in pooled:
            made += rate(name, pooled[name], target)
    made += [*against("rl", "sft", pooled, ">= 0.06"), *against("sft", "mask only", pooled, "")]
    return (
        made + by_seed(seeds) + checks(seeds) + [Figure("minutes without the ablation", total(seeds), "min", "<= 15")]
    )


def rate(name: str, won: np.ndarray, target: str) -> list[Figure]:
    interval = wilson(int(won.sum()), len(won))
    return [
        Figure(f"{name}: success", interval.value, "", target),
        Figure(f"{name}: success, 95 % from", interval.low, ""),
        Figure(f"{name}: success, 95 % to", interval.high, ""),
    ]


def against(a: str, b: str, pooled: dict[str, np.ndarray], target: str) -> list[Figure]:
    if b not in pooled:
        return []
    pair = paired(pooled[a], pooled[b])
    span = newcombe(int(pooled[a].sum()), len(pooled[a]), int(pooled[b].sum()), len(pooled[b]))
    return [
        Figure(f"{a} - {b}", pair.difference, "", target),
        Figure(f"{a} - {b}, 95 % from", span.low, ""),
        Figure(f"{a} - {b}, 95 % to", span.high, ""),
        Figure(f"{a} - {b}, sign test p", pair.p_value, "", "<= 0.01" if target else ""),
    ]


def by_seed(seeds: list[Seed]) -> list[Figure]:
    return [
        Figure(f"seed {number}: {name}", float(np.mean(one.outcomes[name])), "")
        for number, one in enumerate(seeds)
        for name in ("sft", "rl")
    ]


def checks(seeds: list[Seed]) -> list[Figure]:
    """What RL's rounds counted, and the last round again with bfloat16 rollouts."""
    rounds = [result for one in seeds for result in one.rounds]
    gap = max(result.metrics.get("logprob_gap_max", 0.0) for result in rounds)
    made = [
        Figure("inconsistent samples", sum(result.counts["inconsistent"] for result in rounds), "", "<= 0"),
        Figure("samples", sum(result.counts["samples"] for result in rounds), ""),
        Figure("largest gap of log-probabilities, float32", gap, "", "<= 1e-4"),
    ]
    for name in ("logprob_gap_max", "weight_mean", "weight_std", "weight_capped"):
        found = [one.bfloat16[name] for one in seeds if name in one.bfloat16]  # none where all groups were equal
        made += [Figure(f"bfloat16 rollouts: {name}", float(np.mean(found)), "")] if found else []
    return made


def total(seeds: list[Seed]) -> float:
    left_out = ("mask", "evaluate mask only", "bfloat16")
    return sum(spent for one in seeds for name, spent in one.minutes.items() if name not in left_out)


if __name__ == "__main__":
    raise SystemExit(main())
