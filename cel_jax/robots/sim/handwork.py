"""Movements that scripted work is made of: approach, back away, rise, and where a hand goes for what it holds."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim import turns
from cel_jax.robots.sim.facts import Facts
from cel_jax.robots.sim.ik import ArmKinematics
from cel_jax.robots.sim.motions import Hands, Motion, together
from cel_jax.robots.sim.physics import Physics, home_q

Pose = tuple[np.ndarray, np.ndarray]  # position [3], rotation [3, 3]
HOVER_Z = 0.135
HOME_RISE_M = 0.06


class Workplace(Protocol):
    """What scripted work looks at."""

    physics: Physics
    kinematics: ArmKinematics
    facts: Facts


class Handwork:
    """Two hands at one workplace."""

    def __init__(self, world: Workplace, hands: Hands) -> None:
        self._workplace, self._hands = world, hands
        home = world.kinematics.forward(home_q())
        self._home = home[0] + up(HOME_RISE_M), home[1]

    @property
    def _facts(self) -> Facts:
        return self._workplace.facts

    def _in_box(self, x: float, y: float, z: float) -> np.ndarray:
        f = self._facts
        return f.position[L.BOX] + f.rotation[L.BOX] @ np.array([x, y, z])

    def _box_yaw(self) -> float:
        return turns.yaw_of(self._facts.rotation[L.BOX])

    def _go_home(self, arm: int) -> Motion:
        return self._hands.move(arm, self._home[0][arm], self._home[1][arm])

    def _rise(self, arm: int, z: float, speed: float = 1.0) -> Motion:
        at = self._hands.position[arm]
        return self._hands.move(arm, np.array([at[0], at[1], max(at[2], z)]), speed=speed)

    def _approach(
        self, arm: int, position: np.ndarray, rotation: np.ndarray, back: np.ndarray, opening: float
    ) -> Motion:
        before = position + back
        above = np.array([before[0], before[1], max(before[2], HOVER_Z)])
        yield from together(self._hands.move(arm, above, rotation), self._hands.grip(arm, opening))
        if np.linalg.norm(above - before) > 0.01:
            yield from self._hands.move(arm, before)
        yield from self._hands.move(arm, position)

    def _back_off(self, arm: int, point: np.ndarray, opening: float) -> Motion:
        yield from self._hands.grip(arm, opening)
        yield from self._hands.move(arm, point)

    def _tip_for(self, arm: int, thing: int, position: np.ndarray, rotation: np.ndarray) -> Pose:
        """The tip pose that brings a held part to a pose, given how it is held."""
        f = self._facts
        tip, turned = f.tip[arm], self._workplace.physics.tips()[1][arm]
        turn = rotation @ f.rotation[thing].T
        return position + turn @ (tip - f.position[thing]), turn @ turned


def up(z: float) -> np.ndarray:
    """[3]: `z` metres upwards."""
    return np.array([0.0, 0.0, z])


def level(rotation: np.ndarray) -> np.ndarray:
    """The nearest rotation whose z axis is vertical (up or down, whichever is nearer)."""
    z = np.array([0.0, 0.0, 1.0 if rotation[2, 2] >= 0 else -1.0])
    x = rotation[:, 0] - z * (z @ rotation[:, 0])
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)
