"""How often the scripted teacher packs on the simulated tabletop, and how long an episode takes.

    python -m bench.physical_table [--quick]

Once with the slips that the teacher makes on purpose, once without, so that what is left is the table's. Beside it the
same teacher on the table of rules. Evaluation states, a task each in turn; MuJoCo steps are CPU time on one core.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import report
from bench.report import Figure
from cel_jax.evaluation.intervals import wilson
from cel_jax.planner.config import HarnessConfig
from cel_jax.planner.demonstrations import Demonstration, demonstrate
from cel_jax.planner.rollouts import Spec
from cel_jax.planner.sites import make_table
from cel_jax.planner.splits import EVALUATION_STATES
from cel_jax.planner.tabletop.packing import PackingTable
from cel_jax.planner.tool_harness import Limits

NAME, EPISODES, QUICK_EPISODES = "physical_table", 40, 4
TASK_STEP = 7  # no divisor of the number of tasks, so that all kinds come
LIMITS = Limits(24, 600.0)
TEACHERS = {"teacher": False, "careful teacher": True}


def main(argv: Sequence[str] | None = None) -> int:
    flags = report.parser(__doc__).parse_args(argv)
    report.write(NAME, measure(QUICK_EPISODES if flags.quick else EPISODES), report.command(NAME, argv))
    return 0


def measure(episodes: int) -> list[Figure]:
    """All episodes of both teachers."""
    physical, text = (make_table(HarnessConfig(tabletop=name)) for name in ("physical", "text"))
    found = []
    for name, careful in TEACHERS.items():
        begin_s = time.monotonic()
        shown = play(physical, episodes, careful)
        took_s = time.monotonic() - begin_s
        found += figures(name, shown, play(text, episodes, careful), took_s)
    return found


def play(table: PackingTable, episodes: int, careful: bool) -> list[Demonstration]:
    """One episode for each pair of a task and an initial state."""
    tasks, states = table.tasks(), list(EVALUATION_STATES)
    specs = [Spec(tasks[TASK_STEP * i % len(tasks)], states[i % len(states)], 0) for i in range(episodes)]
    return [demonstrate(table, spec, LIMITS, HarnessConfig().keep_exchanges, 0, careful) for spec in specs]


def figures(name: str, physical: list[Demonstration], text: list[Demonstration], took_s: float) -> list[Figure]:
    won, count = sum(one.success for one in physical), len(physical)
    interval, peer = wilson(won, count), "on the table of rules"
    return [
        Figure(f"{name}: packed", 100 * won / count, "%", peer=peer, peer_value=_percent(text)),
        Figure(f"{name}: packed, from", 100 * interval.low, "%"),
        Figure(f"{name}: packed, to", 100 * interval.high, "%"),
        Figure(f"{name}: calls an episode", _calls(physical), "", peer=peer, peer_value=_calls(text)),
        Figure(f"{name}: one episode", took_s / count, "s"),
    ]


def _percent(shown: list[Demonstration]) -> float:
    return 100 * sum(one.success for one in shown) / len(shown)


def _calls(shown: list[Demonstration]) -> float:
    return sum(len(one.records) for one in shown) / len(shown)


if __name__ == "__main__":
    raise SystemExit(main())
