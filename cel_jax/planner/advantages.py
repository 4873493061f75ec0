"""Leave-one-out advantages of groups, and which groups teach (specification 5.3 to 5.5).

Shape letters: V valid attempts of a group.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cel_jax.planner.records import Report


def rloo_advantages(rewards: np.ndarray) -> np.ndarray:
    """A_i = R_i - mean of the other rewards (equation 5). rewards float [V] -> float32 [V].

    Equal rewards give exactly 0. Raises ValueError with fewer than two rewards, where the mean is undefined.
    """
    rewards = np.asarray(rewards, np.float64)
    if rewards.ndim != 1 or len(rewards) < 2:
        raise ValueError(f"rloo_advantages: expected at least two rewards [V], got shape {rewards.shape}")
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    advantages = rewards - others
    return np.where(np.ptp(rewards) == 0, 0.0, advantages).astype(np.float32)


def group_advantages(reports: Sequence[Report]) -> tuple[dict[str, float], dict[str, int]]:
    """(episode -> advantage of every episode with a gradient, counts of what was left out).

    Invalid episodes are out before the group is formed; a failure stays with reward 0. A group left with one valid
    attempt is dropped; a group of equal rewards has no gradient.
    """
    advantages: dict[str, float] = {}
    counts = {"invalid": sum(not r.valid for r in reports), "single": 0, "equal": 0, "groups": 0}
    for group in _groups(reports):
        counts["groups"] += 1
        if len(group) < 2:
            counts["single"] += 1
            continue
        values = rloo_advantages(np.array([r.reward for r in group]))
        if not values.any():
            counts["equal"] += 1
            continue
        advantages |= {r.episode: float(a) for r, a in zip(group, values, strict=True)}
    return advantages, counts


def _groups(reports: Sequence[Report]) -> list[list[Report]]:
    """Valid attempts at the same task from the same initial state, in the order in which they came."""
    groups: dict[tuple[str, int], list[Report]] = defaultdict(list)
    for report in reports:
        if report.valid:
            groups[report.task, report.initial_state].append(report)
    return list(groups.values())


def select_responses(episode: str, responses: int, cap: int, seed: int) -> np.ndarray:
    """Which responses of an episode enter the update: int [min(responses, cap)], rising.

    Uniform without replacement, from a seed of its own for each episode, so that no other episode changes the choice.
    """
    if responses <= cap:
        return np.arange(responses)
    rng = np.random.default_rng([seed, stable_hash(episode)])
    return np.sort(rng.choice(responses, cap, replace=False))


def stable_hash(text: str) -> int:
    """32 bits of a text that do not change from process to process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
