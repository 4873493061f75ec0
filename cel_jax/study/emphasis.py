"""What the priorities really emphasise: how many chunks they draw from, and in which stages of the task.

Of the stored weights alone, without a table's uniform share. Shape letters: C chunks, T frames.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def effective_share(weights: np.ndarray) -> float:
    """float64 [C] -> effective number of chunks (sum w)^2 / sum w^2 over C; 1: uniform, or no weight at all."""
    total = weights.sum()
    if not total:
        return 1.0
    return float(total**2 / np.square(weights).sum() / len(weights))


def stage_shares(weights: np.ndarray, stages: np.ndarray) -> dict[int, float]:
    """float64 [C] and int [C], the stage each chunk begins in -> each stage's share of the weight; they add up to 1."""
    total = weights.sum()
    if not total:
        return {}
    return {int(stage): float(weights[stages == stage].sum() / total) for stage in np.unique(stages)}


def gathered(
    starts: list[tuple[str, int]], weights: Mapping[str, np.ndarray], stages: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """A table's chunks as arrays. starts: (episode, start frame), an episode's in the order of its weights; stages:
    int [T] of each episode. Returns float64 [C] weights and int [C] stages, episode by episode."""
    episodes = list(dict.fromkeys(episode for episode, _ in starts))
    begun: dict[str, list[int]] = {episode: [] for episode in episodes}
    for episode, start in starts:
        begun[episode].append(start)
    if not episodes:
        return np.zeros(0), np.zeros(0, int)
    found = [stages[episode][begun[episode]] for episode in episodes]
    return np.concatenate([weights[episode] for episode in episodes]), np.concatenate(found)
