"""Inverse kinematics of both arms by damped least squares on the true (uncalibrated) chain.

Sources: damped least squares as in Wampler 1986 and Nakamura and Hanafusa 1986, with a posture pull in the null space.
"""

from __future__ import annotations

import numpy as np

from cel_jax.robots.sim import arms, scene
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.engine import mujoco

DAMPING = 0.03
POSTURE_GAIN = 0.05
MAX_STEP_RAD = 0.12


class ArmKinematics:
    """Forward and inverse kinematics of the tips, angles [14] = left 7, right 7, radians."""

    def __init__(self) -> None:
        self._model = scene.build_arms_model()
        self._data = mujoco.MjData(self._model)
        m = self._model
        names = [[f"{arm}_j{i}" for i in range(7)] for arm in L.ARM_NAMES]
        self._qpos = np.array([[m.joint(n).qposadr[0] for n in row] for row in names])
        self._dof = np.array([[m.joint(n).dofadr[0] for n in row] for row in names])
        self._sites = [m.site(f"{arm}_tip").id for arm in L.ARM_NAMES]
        self._home = np.array([arms.home(L.LEFT), arms.home(L.RIGHT)])
        self._limit = np.array(arms.JOINT_RANGE_RAD) - 0.05
        self._jacobian = np.zeros((6, m.nv))

    def forward(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tip positions [2, 3] and rotations [2, 3, 3] for angles [14]."""
        self._data.qpos[self._qpos] = q.reshape(2, 7)
        mujoco.mj_kinematics(self._model, self._data)
        return self._data.site_xpos[self._sites].copy(), self._data.site_xmat[self._sites].reshape(2, 3, 3).copy()

    def solve(self, q: np.ndarray, positions: np.ndarray, rotations: np.ndarray, iterations: int = 2) -> np.ndarray:
        """Angles [14] near `q` whose tips come near the targets [2, 3], [2, 3, 3]."""
        q = q.copy()
        for _ in range(iterations):
            at, turned = self.forward(q)
            mujoco.mj_comPos(self._model, self._data)
            for arm in (L.LEFT, L.RIGHT):
                span = slice(7 * arm, 7 * arm + 7)
                error = np.concatenate([positions[arm] - at[arm], rotation_error(turned[arm], rotations[arm])])
                q[span] = self._arm_step(arm, q[span], error)
        return q

    def _arm_step(self, arm: int, q: np.ndarray, error: np.ndarray) -> np.ndarray:
        mujoco.mj_jacSite(self._model, self._data, self._jacobian[:3], self._jacobian[3:], self._sites[arm])
        j = self._jacobian[:, self._dof[arm]]
        gram = j @ j.T + DAMPING**2 * np.eye(6)
        pull = POSTURE_GAIN * (self._home[arm] - q)
        step = pull + j.T @ np.linalg.solve(gram, error - j @ pull)
        step *= min(1.0, MAX_STEP_RAD / max(1e-9, float(np.abs(step).max())))
        return np.clip(q + step, -self._limit, self._limit)


def rotation_error(now: np.ndarray, target: np.ndarray) -> np.ndarray:
    """World-frame rotation vector [3] (radians) that turns `now` into `target`."""
    r = target @ now.T
    axis = np.array([r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]])
    sine, cosine = np.linalg.norm(axis) / 2, (np.trace(r) - 1) / 2
    if sine < 1e-8:
        return np.zeros(3)
    return axis / (2 * sine) * float(np.arctan2(sine, cosine))
