"""The simulated world of one robot instance: model, data, reset, control step. Knows no rules and no rendering."""

from __future__ import annotations

import numpy as np

from cel_jax.robots.sim import arms, scene
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.calibration import NUM_JOINTS, RobotCalibration
from cel_jax.robots.sim.engine import mujoco
from cel_jax.robots.sim.placement import Placement

SETTLE_SUBSTEPS = 24
ACTION_DIM = 16
JOINT_INDEX = np.array([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14])  # joints within the 16 numbers
GRIPPER_INDEX = np.array([7, 15])


class Physics:
    """MuJoCo model and data with index tables. States and actions: 7 joints and gripper (0 closed, 1 open) per arm."""

    def __init__(self, calibration: RobotCalibration, model: mujoco.MjModel | None = None) -> None:
        """model: another scene with the same arms and objects; by default phone packaging's."""
        self.calibration = calibration
        self.model = model or scene.build_model(calibration)
        self.data = mujoco.MjData(self.model)
        self.encoder_offset_rad = np.array(calibration.encoder_offset_rad)
        self._index()

    def _index(self) -> None:
        m = self.model
        names = [f"{arm}_j{i}" for arm in L.ARM_NAMES for i in range(7)]
        self.joint_qpos = np.array([m.joint(name).qposadr[0] for name in names])
        self.finger_qpos = np.array([[m.joint(f"{arm}_f{k}").qposadr[0] for k in (0, 1)] for arm in L.ARM_NAMES])
        self.body_ids = np.array([m.body(name).id for name in L.OBJECTS])
        self.part_qpos = {name: m.joint(name).qposadr[0] for name in L.OBJECTS[:-1]}
        self.box_qpos, self.box_dof = m.joint("box_x").qposadr[0], m.joint("box_x").dofadr[0]
        self.tip_sites = np.array([m.site(f"{arm}_tip").id for arm in L.ARM_NAMES])
        self.mocap_ids = {m.body(i).name: m.body_mocapid[i] for i in range(m.nbody) if m.body_mocapid[i] >= 0}
        self.body_dof = np.array([m.body_dofadr[i] for i in self.body_ids[:-1]])
        self._index_geoms()

    def _index_geoms(self) -> None:
        """entity[geom]: 0-6 objects, 7-10 fingers (left 0, left 1, right 0, right 1), -1 other."""
        m = self.model
        entity_of_body = np.full(m.nbody, -1)
        entity_of_body[self.body_ids] = np.arange(len(L.OBJECTS))
        fingers = [m.body(f"{arm}_finger{k}").id for arm in L.ARM_NAMES for k in (0, 1)]
        entity_of_body[fingers] = len(L.OBJECTS) + np.arange(4)
        self.geom_entity = entity_of_body[m.geom_bodyid]

    def reset(self, placement: Placement, start_q: np.ndarray) -> None:
        """Puts everything in place, arms at `start_q` [14] (true angles), grippers open, and lets it settle."""
        d = self.data
        mujoco.mj_resetData(self.model, d)
        for name, place in placement.fixtures.items():
            pose = place.pose()
            d.mocap_pos[self.mocap_ids[name]], d.mocap_quat[self.mocap_ids[name]] = pose[:3], pose[3:]
        for name, place in placement.parts.items():
            d.qpos[self.part_qpos[name] : self.part_qpos[name] + 7] = place.pose()
        d.qpos[self.box_qpos : self.box_qpos + 3] = (placement.box.x, placement.box.y, placement.box.yaw)
        d.qpos[self.joint_qpos] = start_q
        d.qpos[self.finger_qpos] = L.MAX_OPENING / 4
        self.command = self._reading(start_q, 0.5)
        self._control = self._to_control(self.command)
        d.ctrl[:] = self._control
        mujoco.mj_step(self.model, d, SETTLE_SUBSTEPS)

    def _reading(self, q: np.ndarray, gripper: float) -> np.ndarray:
        state = np.empty(ACTION_DIM)
        state[JOINT_INDEX] = q + self.encoder_offset_rad
        state[GRIPPER_INDEX] = gripper
        return state

    def _to_control(self, action: np.ndarray) -> np.ndarray:
        """Encoder-frame targets [16] -> MuJoCo controls [16] (true angles; gripper opening in metres)."""
        control = np.empty(ACTION_DIM)
        control[JOINT_INDEX] = action[JOINT_INDEX] - self.encoder_offset_rad
        control[GRIPPER_INDEX] = action[GRIPPER_INDEX] * L.MAX_OPENING
        return control

    def step(self, action: np.ndarray) -> None:
        """One control period: the new targets take effect after the robot's delay."""
        delay = self.calibration.delay_substeps
        if delay:
            mujoco.mj_step(self.model, self.data, delay)
        self._control = self._to_control(action)
        self.data.ctrl[:] = self._control
        mujoco.mj_step(self.model, self.data, scene.SUBSTEPS - delay)

    def state(self) -> np.ndarray:
        """float32 [16]: encoder readings and gripper openings (0..1)."""
        state = np.empty(ACTION_DIM, np.float32)
        state[JOINT_INDEX] = self.data.qpos[self.joint_qpos] + self.encoder_offset_rad
        state[GRIPPER_INDEX] = self.data.qpos[self.finger_qpos].sum(axis=1) / L.MAX_OPENING
        return state

    def object_poses(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions [7, 3] and rotations [7, 3, 3] of the objects, true values."""
        return self.data.xpos[self.body_ids], self.data.xmat[self.body_ids].reshape(-1, 3, 3)

    def tips(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions [2, 3] and rotations [2, 3, 3] of the gripper tips, true values."""
        return self.data.site_xpos[self.tip_sites], self.data.site_xmat[self.tip_sites].reshape(-1, 3, 3)

    def touching(self) -> np.ndarray:
        """bool [4, 7]: which finger (left 0, 1, right 0, 1) touches which object."""
        touch = np.zeros((4, len(L.OBJECTS)), bool)
        pairs = self.geom_entity[self.data.contact.geom]
        if len(pairs):
            low, high = pairs.min(axis=1), pairs.max(axis=1)
            keep = (low >= 0) & (low < len(L.OBJECTS)) & (high >= len(L.OBJECTS))
            touch[high[keep] - len(L.OBJECTS), low[keep]] = True
        return touch

    def speeds(self) -> np.ndarray:
        """float64 [7]: speed of each object, metres per second (box last, from its two slides)."""
        v = self.data.qvel
        parts = np.linalg.norm(v[self.body_dof[:, None] + np.arange(3)], axis=1)
        return np.append(parts, np.hypot(v[self.box_dof], v[self.box_dof + 1]))


def home_q() -> np.ndarray:
    """float64 [14]: both arms' home angles."""
    q = np.array([*arms.home(L.LEFT), *arms.home(L.RIGHT)])
    assert q.shape == (NUM_JOINTS,)
    return q
