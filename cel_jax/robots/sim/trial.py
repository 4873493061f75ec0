"""Measures the scripted operators: success with a Wilson interval, steps, milliseconds, reasons of failure.

python -m cel_jax.robots.sim.trial --trials 100 --operator exact
python -m cel_jax.robots.sim.trial --trials 40 --operator mixed --image_every 3
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import time

from cel_jax.data.episode import Outcome
from cel_jax.robots.protocol import Verdict
from cel_jax.robots.sim.expert import Expert
from cel_jax.robots.sim.styles import OperatorStyle, operators
from cel_jax.robots.sim.world import PackagingWorld, TaskParams


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial: verdict, stage reached (0..10), control steps, empty grasps, CPU seconds in steps and in rendering."""

    verdict: Verdict
    stage: int
    steps: int
    empty_grasps: int
    step_cpu_s: float
    render_cpu_s: float
    renders: int


def run_trial(world: PackagingWorld, style: OperatorStyle, seed: int, image_every: int = 0) -> Trial:
    """One trial of a scripted operator; renders every `image_every` steps if that is not 0."""
    world.reset(seed)
    expert = Expert(world, style, seed)
    step_s = render_s = 0.0
    renders = 0
    while (verdict := world.verdict()) is None:
        action = expert.act()
        start = time.thread_time()
        world.step(action)
        step_s += time.thread_time() - start
        if image_every and world.steps % image_every == 0:
            start = time.thread_time()
            world.observe()
            render_s += time.thread_time() - start
            renders += 1
    return Trial(verdict, world.stage(), world.steps, world.referee.total_empty_grasps, step_s, render_s, renders)


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion."""
    p, z2 = successes / trials, z * z
    middle = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return middle - half, middle + half


def report(name: str, trials: list[Trial]) -> str:
    """A few lines about many trials."""
    good = [t for t in trials if t.verdict.outcome is Outcome.SUCCESS]
    low, high = wilson(len(good), len(trials))
    steps = sum(t.steps for t in trials)
    lines = [
        f"{name}: {len(good)}/{len(trials)} = {len(good) / len(trials):.3f} [{low:.3f}, {high:.3f}], "
        f"successful steps mean {sum(t.steps for t in good) / max(1, len(good)):.0f} "
        f"({min((t.steps for t in good), default=0)}..{max((t.steps for t in good), default=0)}), "
        f"with empty grasps {sum(t.empty_grasps > 0 for t in good)}, "
        f"{1e3 * sum(t.step_cpu_s for t in trials) / steps:.2f} ms CPU per control step"
    ]
    renders = sum(t.renders for t in trials)
    if renders:
        lines.append(f"  {1e3 * sum(t.render_cpu_s for t in trials) / renders:.2f} ms CPU per rendered observation")
    reasons = collections.Counter(t.verdict.reason for t in trials if t.verdict.outcome is not Outcome.SUCCESS)
    return "\n".join(lines + [f"  {count} x {reason}" for reason, count in reasons.most_common()])


def main() -> None:
    """Parses flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="per operator")
    parser.add_argument("--operator", default="exact", help="a name, or 'mixed'")
    parser.add_argument("--robots", type=int, default=10, help="robot instances that take turns")
    parser.add_argument("--first_robot", type=int, default=0)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--pose_range", type=float, default=1.0)
    parser.add_argument("--image_px", type=int, default=96)
    parser.add_argument("--image_every", type=int, default=0, help="render every so many steps; 0 never")
    flags = parser.parse_args()
    params = TaskParams(image_px=flags.image_px, pose_range=flags.pose_range)
    mode = "images" if flags.image_every else "state"
    worlds = [PackagingWorld(flags.first_robot + i, mode, params) for i in range(flags.robots)]
    for style in operators(flags.operator):
        seeds = range(flags.first_seed, flags.first_seed + flags.trials)
        trials = [run_trial(worlds[s % len(worlds)], style, s, flags.image_every) for s in seeds]
        print(report(style.name, trials), flush=True)


if __name__ == "__main__":
    main()
