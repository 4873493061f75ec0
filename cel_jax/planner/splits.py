"""Which initial states do what: 0 is explored for memory, 1-10 evaluate, 11-44 train, 45-49 validate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cel_jax.planner.rollouts import Spec

MEMORY_STATES = range(0, 1)
EVALUATION_STATES = range(1, 11)
TRAINING_STATES = range(11, 45)
VALIDATION_STATES = range(45, 50)


def every_spec(tasks: Sequence[str], states: Sequence[int], attempts: int) -> list[Spec]:
    """All tasks from all states, `attempts` times each."""
    return [Spec(task, state, attempt) for task in tasks for state in states for attempt in range(attempts)]


def training_groups(tasks: Sequence[str], groups: int, attempts: int, seed: int, round_: int) -> list[Spec]:
    """A round's groups: distinct (task, training state) pairs, `attempts` times each. Luck differs by round.

    Raises ValueError if there are not so many pairs.
    """
    pairs = [(task, state) for task in tasks for state in TRAINING_STATES]
    if groups > len(pairs):
        raise ValueError(
            f"{groups} groups asked for; {len(tasks)} tasks and {len(TRAINING_STATES)} states give {len(pairs)}"
        )
    chosen = np.random.default_rng([31, seed, round_]).choice(len(pairs), groups, replace=False)
    first = 1000 * (round_ + 1)
    return [Spec(pairs[i][0], pairs[i][1], first + attempt) for i in chosen for attempt in range(attempts)]
