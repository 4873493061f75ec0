"""Turns the commanded poses of two hands into joint targets, by inverse kinematics, one control period at a time."""

from __future__ import annotations

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.ik import ArmKinematics
from cel_jax.robots.sim.motions import Hands
from cel_jax.robots.sim.physics import ACTION_DIM, GRIPPER_INDEX, JOINT_INDEX, Physics

MAX_STEP_RAD = 0.1  # per control period: 3 rad/s, below the robot's limit


class Driver:
    """Begins where the arms are now."""

    def __init__(self, physics: Physics, kinematics: ArmKinematics, speed: float) -> None:
        self._physics, self._kinematics = physics, kinematics
        self._q = physics.data.qpos[physics.joint_qpos].copy()
        position, rotation = physics.tips()
        self.hands = Hands(position, rotation, physics.data.qpos[physics.finger_qpos].sum(axis=1), speed)

    def action(self) -> np.ndarray:
        """float32 [16]: the next absolute targets, in the robot's encoder units."""
        hands = self.hands
        step = self._kinematics.solve(self._q, hands.position, hands.rotation) - self._q
        self._q = self._q + np.clip(step, -MAX_STEP_RAD, MAX_STEP_RAD)
        action = np.empty(ACTION_DIM, np.float32)
        action[JOINT_INDEX] = self._q + self._physics.encoder_offset_rad
        action[GRIPPER_INDEX] = hands.opening / L.MAX_OPENING
        return action
