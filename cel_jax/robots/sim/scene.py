"""The whole MJCF scene for one robot instance, and the arms alone for inverse kinematics."""

from __future__ import annotations

import math

import numpy as np

from cel_jax.robots.sim import arms, parts
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.calibration import CAMERAS, RobotCalibration
from cel_jax.robots.sim.engine import mujoco

CONTROL_HZ = 30.0
SUBSTEPS = 8
TIMESTEP_S = 1.0 / CONTROL_HZ / SUBSTEPS

# Cameras. The paper's head camera gives 400 x 640, its wrist cameras 1056 x 1280 (height x width).
HEAD_FOVY_DEG = 42.0
WRIST_FOVY_DEG = 86.0
WRIST_POS = (0.045, 0.0, 0.085)
HEAD_POS, HEAD_TARGET = (0.04, 0.0, 0.80), (0.43, -0.03, 0.02)


def build_model(calibration: RobotCalibration) -> mujoco.MjModel:
    """The compiled scene of one robot instance (about 30 ms; built once, never per episode)."""
    return mujoco.MjModel.from_xml_string(scene_xml(calibration))


def build_arms_model() -> mujoco.MjModel:
    """Both arms with nothing around them and no calibration error: the expert's and the safety check's kinematics."""
    both = [arms.arm_text(arm, None) for arm in (L.LEFT, L.RIGHT)]
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><compiler angle="radian"/><worldbody>{both[0].body}{both[1].body}</worldbody></mujoco>'
    )


def scene_xml(calibration: RobotCalibration) -> str:
    """MJCF text of the scene of one robot instance."""
    friction = calibration.friction_scale
    things = parts.small_parts(friction) + parts.lid(friction)
    things += parts.packaging_box(friction, calibration.box_friction_scale) + parts.fixtures()
    return arms_and(things, calibration)


def arms_and(things: str, calibration: RobotCalibration) -> str:
    """MJCF text of table, arms and cameras of one robot instance, with `things` on the table."""
    both = [arms.arm_text(arm, calibration, _wrist_camera(arm, calibration)) for arm in (L.LEFT, L.RIGHT)]
    table = '<geom name="table" type="box" pos="0.35 0 -0.02" size="0.45 0.6 0.02" rgba="0.6 0.55 0.5 1" contype="1" '
    table += 'conaffinity="14" friction="0.6 .005 .0001"/>'
    return f"""
<mujoco model="phone_packaging">
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP_S}" integrator="implicitfast" cone="elliptic" impratio="3" iterations="30"
    tolerance="1e-6"/>
  <visual><quality shadowsize="0" offsamples="0"/>{_light_text(calibration)}<map znear="0.02" zfar="20"/></visual>
  <worldbody>
    <light directional="true" pos="0.3 0 2" dir="0.15 0.1 -1" castshadow="false" {_diffuse(calibration)}/>
    {_head_camera(calibration)}
    {table}{both[0].body}{both[1].body}{things}
  </worldbody>
  <tendon>{both[0].tendon}{both[1].tendon}</tendon>
  <equality>{both[0].equality}{both[1].equality}</equality>
  <actuator>{both[0].actuators}{both[1].actuators}</actuator>
</mujoco>"""


def _light_text(calibration: RobotCalibration) -> str:
    level = 0.28 * calibration.light_scale
    tint = " ".join(f"{level * t:.4f}" for t in calibration.light_tint)
    return f'<headlight ambient="{tint}" diffuse="{tint}" specular="0 0 0"/>'


def _diffuse(calibration: RobotCalibration) -> str:
    level = 0.42 * calibration.light_scale
    return 'diffuse="' + " ".join(f"{level * t:.4f}" for t in calibration.light_tint) + '" specular="0 0 0"'


def _head_camera(calibration: RobotCalibration) -> str:
    """The head camera. No crop (Table 4); 400 x 640 is squeezed to a square: see `render.SQUEEZE`."""
    pos = np.add(HEAD_POS, calibration.camera_shift_m[0])
    look = np.subtract(HEAD_TARGET, HEAD_POS)
    return _camera_text(CAMERAS[0], pos, _look_axes(look, (0, 0, 1)), HEAD_FOVY_DEG, calibration.camera_turn_rad[0])


def _wrist_camera(arm: int, calibration: RobotCalibration) -> str:
    """A camera on the hand that looks at the fingertips; its view is Table 4's crop of the full view."""
    pos = np.add(WRIST_POS, calibration.camera_shift_m[1 + arm])
    look = np.subtract((arms.HAND + L.FINGER_LENGTH + 0.01, 0.0, 0.0), WRIST_POS)
    axes = _look_axes(look, (0, 0, 1))
    turn = calibration.camera_turn_rad[1 + arm]
    return _camera_text(CAMERAS[1 + arm], pos, axes, wrist_crop_fovy_deg(), turn)


def wrist_crop_fovy_deg() -> float:
    """Table 4 crops 672 x 672 about the centre of 1056 x 1280: the same view through a narrower lens."""
    half = math.tan(math.radians(WRIST_FOVY_DEG) / 2) * 672 / 1056
    return math.degrees(2 * math.atan(half))


def _look_axes(look: np.ndarray, up: tuple[float, ...]) -> np.ndarray:
    """Rotation [3, 3] whose columns are a camera's right, up and back axes."""
    back = -np.asarray(look, float) / np.linalg.norm(look)
    right = np.cross(up, back)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back], axis=1)


def _camera_text(name: str, pos: np.ndarray, axes: np.ndarray, fovy_deg: float, turn: tuple[float, ...]) -> str:
    quat, small = np.zeros(4), np.zeros(9)
    mujoco.mju_euler2Quat(quat, np.asarray(turn), "xyz")
    mujoco.mju_quat2Mat(small, quat)
    m = axes @ small.reshape(3, 3)
    xy = " ".join(f"{v:.6f}" for v in (*m[:, 0], *m[:, 1]))
    return f'<camera name="{name}" pos="{pos[0]:.5f} {pos[1]:.5f} {pos[2]:.5f}" xyaxes="{xy}" fovy="{fovy_deg:.4f}"/>'
