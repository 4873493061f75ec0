"""How often the scripted teacher packs on the simulated tabletop, and how long an episode takes.

    python -m bench.physical_table [--episodes=40] [--tabletop=text]

Once with the slips that the teacher makes on purpose, once without, so that what is left is the table's. Evaluation
states, a task each in turn; MuJoCo steps are pure CPU time on one core.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping
from typing import Any

from absl import app, flags

from cel_jax.evaluation.intervals import wilson
from cel_jax.planner.chat import tool_call
from cel_jax.planner.config import HarnessConfig
from cel_jax.planner.sites import make_table
from cel_jax.planner.splits import EVALUATION_STATES
from cel_jax.planner.tabletop.packing import PackingTable
from cel_jax.planner.tabletop.teacher import Teacher, recall
from cel_jax.planner.tool_harness import Chat, Limits, ToolEpisode, ToolHarness

TASK_STEP = 7  # no divisor of the number of tasks, so that all kinds come


def teacher_chat(table: PackingTable, seed: int, careful: bool) -> Chat:
    """Answers requests with the teacher's next move."""
    teacher = Teacher(table, seed, careful)

    def chat(request: Mapping[str, Any]) -> Mapping[str, Any]:
        move = teacher.next_move()
        call = tool_call(move.name, move.arguments_json)
        return {"choices": [{"message": {"role": "assistant", "content": move.text, "tool_calls": [call]}}]}

    return chat


def play(table: PackingTable, episodes: int, careful: bool) -> list[ToolEpisode]:
    """One episode for each pair of a task and an initial state."""
    harness, tasks = ToolHarness(table, Limits(24, 600.0), memory=recall), table.tasks()
    states = list(EVALUATION_STATES)
    pairs = [(tasks[TASK_STEP * i % len(tasks)], states[i % len(states)]) for i in range(episodes)]
    return [harness.run(task, state, 0, teacher_chat(table, i, careful)) for i, (task, state) in enumerate(pairs)]


def main(argv: list[str]) -> None:
    del argv
    table = make_table(HarnessConfig(tabletop=flags.FLAGS.tabletop))
    for careful in (False, True):
        start = time.monotonic()
        ended = play(table, flags.FLAGS.episodes, careful)
        took_s = time.monotonic() - start
        won, count = sum(e.status == "success" for e in ended), len(ended)
        low, high = (100 * v for v in (wilson(won, count).low, wilson(won, count).high))
        name = "careful teacher" if careful else "teacher"
        print(f"{flags.FLAGS.tabletop}, {name}: {won}/{count} = {100 * won / count:.1f} % [{low:.0f}, {high:.0f}], "
              f"{took_s / count:.2f} s and {sum(e.turns for e in ended) / count:.1f} turns an episode, "
              f"{dict(collections.Counter(e.status for e in ended))}", flush=True)  # fmt: skip


if __name__ == "__main__":
    flags.DEFINE_integer("episodes", 40, "episodes of each kind", lower_bound=1)
    flags.DEFINE_enum("tabletop", "physical", ["physical", "text"], "which table")
    app.run(main)
