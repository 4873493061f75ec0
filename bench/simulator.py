"""What the simulated robots cost, and how often their scripted demonstrator succeeds.

    python -m bench.simulator [--quick] [--trials=100] [--image_px=96]

CPU time of the measuring thread, so that a busy machine changes the figures little. A control step is 1/30 s.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import report
from bench.report import Figure
from cel_jax.data.episode import Outcome
from cel_jax.robots.sim.styles import operator
from cel_jax.robots.sim.trial import Trial, run_trial, wilson
from cel_jax.robots.tasks import make_world

NAME, TASK = "simulator", "phone_packaging"
ROBOTS = 10  # instances that take turns
IMAGE_EVERY_FRAMES = 3
CONTROL_PERIOD_MS = 1e3 / 30


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--trials", type=int, default=0, help="default 100; 5 with --quick")
    parser.add_argument("--rendered", type=int, default=0, help="trials with images; default 5; 1 with --quick")
    parser.add_argument("--image_px", type=int, default=96)
    flags = parser.parse_args(argv)
    trials = run_trials("state", flags.trials or (5 if flags.quick else 100), flags.image_px)
    rendered = run_trials("images", flags.rendered or (1 if flags.quick else 5), flags.image_px)
    report.write(NAME, figures(trials, rendered, flags.image_px), report.command(NAME, argv))
    return 0


def run_trials(mode: str, count: int, image_px: int) -> list[Trial]:
    """Trials of the exact operator, robots by turns, seeds 0, 1, ..; with images every third step is rendered."""
    worlds = [make_world(TASK, robot_seed=i, mode=mode, image_px=image_px) for i in range(min(ROBOTS, count))]
    every = IMAGE_EVERY_FRAMES if mode == "images" else 0
    return [run_trial(worlds[i % len(worlds)], operator("exact"), i, every) for i in range(count)]


def figures(trials: Sequence[Trial], rendered: Sequence[Trial], image_px: int) -> list[Figure]:
    """Cost of a step, of an observation, and the success of the demonstrator with its interval."""
    step_ms = 1e3 * sum(t.step_cpu_s for t in trials) / sum(t.steps for t in trials)
    render_ms = 1e3 * sum(t.render_cpu_s for t in rendered) / sum(t.renders for t in rendered)
    successes = sum(t.verdict.outcome is Outcome.SUCCESS for t in trials)
    low, high = wilson(successes, len(trials))
    real_time = "the control period"
    return [
        Figure("control step, state", step_ms, "ms CPU", "", real_time, CONTROL_PERIOD_MS),
        Figure(f"rendered observation, 3 x {image_px} px", render_ms, "ms CPU", "", real_time, CONTROL_PERIOD_MS),
        Figure(f"expert success, {len(trials)} trials", 100 * successes / len(trials), "%"),
        Figure("expert success, 95 % interval from", 100 * low, "%"),
        Figure("expert success, 95 % interval to", 100 * high, "%"),
        Figure("steps of a trial, mean", sum(t.steps for t in trials) / len(trials), "steps"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
