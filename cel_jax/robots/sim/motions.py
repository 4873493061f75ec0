"""Motions of two hands as generators: each `yield` is one control period. Min-jerk in position, slerp in rotation.

`Hands` keeps the commanded tip poses; a motion changes them and yields; the expert turns them into joint targets.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.ik import rotation_error
from cel_jax.robots.sim.turns import by_vector

Motion = Generator[None, None, None]
PERIOD_S = 1.0 / 30.0
PEAK_M_S, PEAK_RAD_S = 0.85, 2.6
MIN_JERK_PEAK = 1.875  # peak speed over mean speed of a min-jerk motion (Flash and Hogan 1985)
GRIPPER_M_S = 0.45


class Hands:
    """Commanded tip positions [2, 3], rotations [2, 3, 3] and openings [2] (m)."""

    def __init__(self, position: np.ndarray, rotation: np.ndarray, opening: np.ndarray, speed: float) -> None:
        self.position, self.rotation, self.opening = position.copy(), rotation.copy(), opening.copy()
        self.speed = speed

    def move(self, arm: int, position: np.ndarray, rotation: np.ndarray | None = None, speed: float = 1.0) -> Motion:
        """Straight min-jerk motion of one tip to a pose."""
        start, turned = self.position[arm].copy(), self.rotation[arm].copy()
        target = turned if rotation is None else rotation
        turn = rotation_error(turned, target)
        way = np.asarray(position, float) - start
        rate = self.speed * speed
        mean_s = max(np.linalg.norm(way) / PEAK_M_S, np.linalg.norm(turn) / PEAK_RAD_S) / rate
        steps = max(2, int(np.ceil(MIN_JERK_PEAK * mean_s / PERIOD_S)))
        for i in range(1, steps + 1):
            s = _min_jerk(i / steps)
            self.position[arm] = start + s * way
            self.rotation[arm] = by_vector(s * turn) @ turned
            yield

    def grip(self, arm: int, opening: float, hold_s: float = 0.0) -> Motion:
        """Opens or closes one gripper at its speed, then waits `hold_s` for the fingers to follow."""
        step = GRIPPER_M_S * PERIOD_S
        opening = float(np.clip(opening, 0.0, L.MAX_OPENING))
        while abs(self.opening[arm] - opening) > 1e-9:
            self.opening[arm] += np.clip(opening - self.opening[arm], -step, step)
            yield
        yield from wait(hold_s)


def _min_jerk(t: float) -> float:
    return t**3 * (10.0 - 15.0 * t + 6.0 * t * t)


def wait(seconds: float) -> Motion:
    """Holds still."""
    for _ in range(round(seconds / PERIOD_S)):
        yield


def together(*motions: Iterable[None]) -> Motion:
    """Runs motions side by side until the last has ended."""
    running = [iter(motion) for motion in motions]
    while running:
        running = [motion for motion in running if next(motion, _END) is not _END]
        if running:
            yield


_END = object()


def in_turn(*motions: Iterable[None]) -> Motion:
    """Runs motions one after another."""
    for motion in motions:
        yield from motion
