"""Looks at the simulated world: the facts of one moment, with a contact that flickers still counted as held."""

from __future__ import annotations

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.facts import Facts
from cel_jax.robots.sim.physics import Physics

MIN_HELD_M = 0.012
HOLD_MEMORY_STEPS = 2  # a contact that flickers for this many control steps still counts as held


class Sight:
    """Of one physics, from one reset to the next; looks once each control step."""

    def __init__(self, physics: Physics) -> None:
        self._physics = physics
        self._contact_age = np.full((2, len(L.OBJECTS)), 99)

    def look(self, time_s: float) -> Facts:
        """The present moment."""
        p = self._physics
        position, rotation = p.object_poses()
        tip, _ = p.tips()
        opening = p.data.qpos[p.finger_qpos].sum(axis=1)
        touch = p.touching().reshape(2, 2, len(L.OBJECTS))
        held = self._held(np.asarray(touch.all(axis=1)), opening)
        touched = np.asarray(touch.any(axis=1))
        return Facts(time_s, position.copy(), rotation.copy(), p.speeds(), held, touched, tip.copy(), opening)

    def _held(self, both: np.ndarray, opening: np.ndarray) -> np.ndarray:
        """bool [2, 7]: both fingers touch the object, from its two sides (a closed gripper only pushes)."""
        both = both & (opening > MIN_HELD_M)[:, None]
        self._contact_age = np.where(both, 0, self._contact_age + 1)
        held = self._contact_age <= HOLD_MEMORY_STEPS
        held[:, L.BOX] = False
        return held
