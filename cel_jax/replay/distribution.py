"""How the priorities are spread over the window, event by event: read from a store's log, for plots.

    for one in distributions(EventLog.open(folder / "events.log").events, horizon=30): ...

Shape letters: C chunks in the window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from cel_jax.replay.event_log import Event
from cel_jax.replay.priorities import Priorities
from cel_jax.replay.store_state import StoreState

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclasses.dataclass(frozen=True)
class Distribution:
    """After one retrieval event. failure: what caused it. chunks: in the window. total: of the true weights.

    quantiles: of the true weights, at `QUANTILES`. effective_chunks: 1 / sum P(i)^2, how many equal chunks would be
    drawn as evenly; `chunks` where all weights vanish. top_percent_share: probability of the heaviest hundredth.
    """

    number: int
    failure: str
    chunks: int
    total: float
    quantiles: tuple[float, ...]
    effective_chunks: float
    top_percent_share: float


def distributions(events: Iterable[Event], horizon: int) -> Iterator[Distribution]:
    """One for each retrieval event, in order; one without a match is among them (it changed nothing)."""
    state = StoreState(horizon)
    for event in events:
        state.apply(event)
        if event.kind == "retrieval" and state.priorities.num_chunks:
            yield describe(event.number, event.data["failure"], all_weights(state.priorities))


def all_weights(priorities: Priorities) -> np.ndarray:
    """float64 [C], true weights, oldest episode first."""
    return np.concatenate([np.zeros(0), *(priorities.weights(key) for key in priorities.episodes)])


def describe(number: int, failure: str, weights: np.ndarray) -> Distribution:
    """weights: float64 [C >= 1]."""
    total, chunks = float(weights.sum()), len(weights)
    share = np.sort(weights / total if total > 0 else np.full(chunks, 1 / chunks))
    top = float(share[-max(1, chunks // 100) :].sum())
    quantiles = tuple(float(value) for value in np.quantile(weights, QUANTILES))
    return Distribution(number, failure, chunks, total, quantiles, float(1 / np.square(share).sum()), top)
