"""The arms of a study: FERT, its ablation, and controls that differ in one thing each.

Every arm trains with the fleet's learner for the same number of steps from the same start policy. All but
`demonstrations` collect the same number of episodes on the same robots.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from cel_jax.config import FertConfig, RunConfig
from cel_jax.fert import retrieval
from cel_jax.fert.ingestion import Retriever
from cel_jax.fert.retrieval import Retrieved
from cel_jax.fert.ring import SuccessRing


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train. collects: from its own episodes (else from the demonstrations).

    prepare: changes the configuration. retriever: made for one seed. oracle: targets by the true failing stage.
    """

    name: str
    meaning: str
    collects: bool = True
    oracle: bool = False
    prepare: Callable[[RunConfig], RunConfig] = lambda config: config
    retriever: Callable[[int], Retriever] = lambda seed: retrieval.retrieve_many


def _without_retrieval(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, fert=dataclasses.replace(config.fert, failure_retrieval=False))


def _without_collecting(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, min_frames=0))


def _random_retriever(seed: int) -> Retriever:
    return retrieval.each(functools.partial(_random, np.random.default_rng([0x5EED, seed])))


def _random(rng: np.random.Generator, ring: SuccessRing, query: np.ndarray, config: FertConfig) -> list[Retrieved]:
    return retrieval.random_intervals(ring, query, config, rng)


_ALL = (
    Arm("fert", "failure-guided retrieval, as the configuration has it"),
    Arm("uniform", "the same episodes without failure retrieval: uniform replay", prepare=_without_retrieval),
    Arm(
        "demonstrations",
        "goes on with the start policy's demonstrations; collects nothing",
        collects=False,
        prepare=_without_collecting,
    ),
    Arm("oracle", "targets in the stage where the episode truly failed: the ceiling for retrieval", oracle=True),
    Arm(
        "nearest",
        "the nearest single frame in place of the alignment",
        retriever=lambda _: retrieval.each(retrieval.nearest_frame),
    ),
    Arm("random", "random intervals of the query's length", retriever=_random_retriever),
)
ARMS = {arm.name: arm for arm in _ALL}


def arm(name: str) -> Arm:
    """The named arm. Raises ValueError with the known names."""
    if name not in ARMS:
        raise ValueError(f"unknown arm {name!r}; there are {', '.join(ARMS)}")
    return ARMS[name]
