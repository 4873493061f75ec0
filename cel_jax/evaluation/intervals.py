"""How sure a success rate is: intervals of one rate, of a difference, paired tests, and bootstraps over clusters.

Shape letters: n trials. Rates and intervals are shares in [0, 1]; differences lie in [-1, 1].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

Z_95 = 1.959963984540054  # two-sided 95 %


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its bounds."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """For example `86.7 [79.4, 91.6]`."""
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(successes: int, trials: int, z: float = Z_95) -> Interval:
    """Wilson's score interval of one rate (1927). Raises ValueError unless 0 <= successes <= trials and trials > 0."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(
            f"wilson: {successes} successes of {trials} trials; expected 0 <= successes <= trials, trials > 0"
        )
    rate, share = successes / trials, z * z / trials
    centre = (rate + share / 2) / (1 + share)
    half = z * math.sqrt(rate * (1 - rate) / trials + share / (4 * trials)) / (1 + share)
    return Interval(rate, max(0.0, centre - half), min(1.0, centre + half))


def newcombe(successes_a: int, trials_a: int, successes_b: int, trials_b: int, z: float = Z_95) -> Interval:
    """rate a - rate b of independent trials (Newcombe 1998, method 10: two Wilson intervals squared and joined)."""
    a, b = wilson(successes_a, trials_a, z), wilson(successes_b, trials_b, z)
    below = math.hypot(a.value - a.low, b.high - b.value)
    above = math.hypot(a.high - a.value, b.value - b.low)
    difference = a.value - b.value
    return Interval(difference, difference - below, difference + above)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely; ties do not count. 1.0 without any."""
    if wins < 0 or losses < 0:
        raise ValueError(f"sign_test: wins {wins} and losses {losses} must not be negative")
    total, few = wins + losses, min(wins, losses)
    tail = sum(math.comb(total, k) for k in range(few + 1))
    return min(1.0, 2 * tail / 2**total)


@dataclasses.dataclass(frozen=True)
class Paired:
    """Two policies on the same scenes: rate a - rate b, the scenes only one of them solved, and the sign test's p."""

    difference: float
    only_a: int
    only_b: int
    trials: int
    p_value: float


def paired(a: np.ndarray, b: np.ndarray) -> Paired:
    """Exact McNemar test. a, b: bool [n], success on the same scenes in the same order. Raises on unequal shapes."""
    a, b = np.asarray(a, bool), np.asarray(b, bool)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0:
        raise ValueError(f"paired: outcomes of shape {a.shape} and {b.shape}; expected one outcome per scene from both")
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    return Paired((only_a - only_b) / len(a), only_a, only_b, len(a), sign_test(only_a, only_b))


Tree = np.ndarray | Sequence["Tree"]  # trials, or groups of them: robots, training seeds of robots, ...


def cluster_bootstrap(robots: Sequence[np.ndarray], draws: int = 10_000, seed: int = 0) -> Interval:
    """Rate over all trials, resampling whole robots: what another choice of robots would have given.

    robots: one bool [n_r] for each robot. With two robots, as in the paper, this is crude: report it beside Wilson.
    """
    counts = np.array([[np.sum(r), len(r)] for r in robots], float)
    if len(counts) == 0 or (counts[:, 1] == 0).any():
        raise ValueError("cluster_bootstrap: every robot needs at least one trial")
    chosen = np.random.default_rng(seed).integers(len(counts), size=(draws, len(counts)))
    sums = counts[chosen].sum(1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return Interval(float(counts[:, 0].sum() / counts[:, 1].sum()), float(low), float(high))


def hierarchical_bootstrap(tree: Tree, draws: int = 2_000, seed: int = 0) -> Interval:
    """Mean rate, resampling every level: training seeds, robots within a seed, trials within a robot.

    tree: nested sequences that end in bool [n]; for example [seed][robot] -> outcomes.
    """
    rng = np.random.default_rng(seed)
    return _summary(_mean(tree), [_resampled_mean(tree, rng) for _ in range(draws)])


def hierarchical_difference(a: Sequence[Tree], b: Sequence[Tree], draws: int = 2_000, seed: int = 0) -> Interval:
    """Mean rate a - mean rate b where a[i] and b[i] share the training seed i: both are drawn together."""
    if len(a) != len(b):
        raise ValueError(f"hierarchical_difference: {len(a)} and {len(b)} training seeds; expected the same ones")
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        chosen = rng.integers(len(a), size=len(a))
        found.append(float(np.mean([_resampled_mean(a[i], rng) - _resampled_mean(b[i], rng) for i in chosen])))
    return _summary(_mean(a) - _mean(b), found)


def _summary(value: float, found: list[float]) -> Interval:
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def _mean(tree: Tree) -> float:
    if len(tree) == 0:
        raise ValueError("bootstrap: an empty group; every seed and robot needs at least one trial")
    return float(np.mean(tree)) if isinstance(tree, np.ndarray) else float(np.mean([_mean(part) for part in tree]))


def _resampled_mean(tree: Tree, rng: np.random.Generator) -> float:
    if isinstance(tree, np.ndarray):
        return float(rng.binomial(len(tree), tree.mean()) / len(tree))
    chosen = rng.integers(len(tree), size=len(tree))
    return float(np.mean([_resampled_mean(tree[i], rng) for i in chosen]))


def trials_for(rate_a: float, rate_b: float, power: float = 0.8) -> int:
    """Trials for each of two policies so that a two-sided 5 % test finds the difference with the given power."""
    if rate_a == rate_b or not (0 <= rate_a <= 1 and 0 <= rate_b <= 1 and 0 < power < 1):
        raise ValueError(
            f"trials_for: rates {rate_a} and {rate_b} must differ and lie in [0, 1], power {power} in (0, 1)"
        )
    spread = rate_a * (1 - rate_a) + rate_b * (1 - rate_b)
    return math.ceil((Z_95 + _normal_quantile(power)) ** 2 * spread / (rate_a - rate_b) ** 2)


def _normal_quantile(share: float) -> float:
    return _bisect(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))) - share, -10.0, 10.0)


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
