"""Compares what robots send with the statistics that the policy was trained with. numpy only.

A mismatch is reported, robot by robot, and never averaged away: the policy keeps its own statistics.
Shape letters: V observed frames, S state numbers, O objects, P pose numbers.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.data import normalize
from cel_jax.data.normalize import NormStats
from cel_jax.fert.interfaces import ExperienceNotice

MIN_EPISODES = 5  # of one robot: scenes vary, and a failed episode may stand still
MEAN_SHIFT = 1.0  # standard deviations: robots differ from each other, and so do their scenes
# Recoveries and mistakes widen demonstrations, so that successes are narrower; another unit is narrower still.
WIDER, NARROWER = 3.0, 50.0
ABSURD_STDS = 10.0
MOST_TOLD = 6
WINDOW_EPISODES = 20  # of the newest ones: a robot that changes during a run is noticed


@dataclasses.dataclass(frozen=True)
class _Moments:
    """Of one episode: frames, sums and sums of squares, float64 each."""

    count: int
    total: np.ndarray
    squares: np.ndarray


class IncomingStats:
    """`add(notice)` for every episode; it returns what there is to report, each robot's finding once."""

    def __init__(self, stats: NormStats) -> None:
        self._stats = stats
        self._seen: dict[str, dict[str, list[_Moments]]] = {}
        self._told: set[tuple[str, str]] = set()

    def add(self, notice: ExperienceNotice) -> list[str]:
        """Returns new findings, in words. A success shows its whole episode, a failure the last seconds alone."""
        found = self._compared(notice) if notice.kind == "success" else self._absurd(notice)
        return self._new(notice.robot_id, found)

    def _compared(self, notice: ExperienceNotice) -> list[str]:
        parts = {"state": notice.state} | ({} if notice.objects is None else {"objects": notice.objects})
        seen = self._seen.setdefault(notice.robot_id, {})
        for name, rows in parts.items():
            seen.setdefault(name, []).append(_moments(rows))
            del seen[name][:-WINDOW_EPISODES]
        if len(seen["state"]) < MIN_EPISODES:
            return []
        theirs = {name: _joined(moments) for name, moments in seen.items()}
        return normalize.compare_parts(self._stats, theirs, MEAN_SHIFT, WIDER, NARROWER)

    def _absurd(self, notice: ExperienceNotice) -> list[str]:
        if notice.state.shape[1:] != self._stats.state_mean.shape:
            return [f"state: {notice.state.shape[1:]} numbers, expected {self._stats.state_mean.shape}"]
        away = normalize.normalize(notice.state.mean(0), self._stats.state_mean, self._stats.state_std)
        far = np.flatnonzero(~(np.abs(away) < ABSURD_STDS))
        return [f"state[{i}]: {away[i]:.0f} standard deviations from the policy's mean in a failure" for i in far]

    def _new(self, robot_id: str, found: list[str]) -> list[str]:
        """One text of what was not told of this robot before; a place (`state[3]`) is told once."""
        fresh = [text for text in found if (robot_id, text.partition(":")[0]) not in self._told]
        self._told |= {(robot_id, text.partition(":")[0]) for text in fresh}
        more = f"; and {len(fresh) - MOST_TOLD} more" if len(fresh) > MOST_TOLD else ""
        return [f"robot {robot_id}: {'; '.join(fresh[:MOST_TOLD])}{more}"] if fresh else []


def _moments(rows: np.ndarray) -> _Moments:
    wide = np.asarray(rows, np.float64)
    return _Moments(len(wide), wide.sum(0), np.square(wide).sum(0))


def _joined(parts: list[_Moments]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, never below the floor that the policy's statistics have."""
    count = sum(part.count for part in parts)
    mean = np.sum([part.total for part in parts], axis=0) / count
    variance = np.sum([part.squares for part in parts], axis=0) / count - np.square(mean)
    return mean, np.sqrt(np.maximum(variance, normalize.STD_FLOOR**2))
