"""MJCF of the two seven-joint arms with parallel grippers, without and with the cameras on the wrists.

At zero an arm points along +x. Joints 1..7 turn about z, y, x, y, x, y, x: shoulder yaw, pitch, roll, elbow, forearm
roll, wrist pitch, hand roll. The tip site's z points out of the hand, its y is the closing direction.
"""

from __future__ import annotations

import dataclasses

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.calibration import RobotCalibration

SHOULDER = (0.0, 0.22, 0.43)
UPPER_ARM = 0.33
FOREARM = 0.32
HAND = 0.065  # wrist to the palm's face, where the fingers begin
JOINT_AXES = ("0 0 1", "0 1 0", "1 0 0", "0 1 0", "1 0 0", "0 1 0", "1 0 0")
JOINT_RANGE_RAD = (2.6, 2.2, 2.8, 2.6, 2.8, 2.4, 2.9)
JOINT_KP = (700.0, 700.0, 500.0, 500.0, 150.0, 150.0, 100.0)
JOINT_KV = (28.0, 28.0, 20.0, 20.0, 5.0, 5.0, 3.5)
JOINT_FORCE = (90.0, 90.0, 60.0, 60.0, 25.0, 25.0, 20.0)
ARMATURE = (0.25, 0.25, 0.15, 0.15, 0.03, 0.03, 0.02)
GRIPPER_KP = 700.0
GRIPPER_KV = 30.0
GRIPPER_FORCE = 22.0
# Home: hands above the table at the sides, palms down. The right arm mirrors axes z and x.
HOME_LEFT = (0.27, -0.57, -0.04, 1.95, 0.17, 0.20, 0.09)
MIRROR = (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0)

# Collision bits: 1 world fixtures, 2 parts, 4 left arm, 8 right arm, 16 the packaging box.
ARM_BITS = (4, 8)


@dataclasses.dataclass(frozen=True)
class ArmText:
    """The MJCF pieces of one arm."""

    body: str
    actuators: str
    tendon: str
    equality: str


def home(arm: int) -> tuple[float, ...]:
    """Joint angles [7] of the arm's rest pose, radians."""
    return HOME_LEFT if arm == L.LEFT else tuple(m * q for m, q in zip(MIRROR, HOME_LEFT, strict=True))


def arm_text(arm: int, calibration: RobotCalibration | None, camera: str = "") -> ArmText:
    """MJCF pieces of arm 0 (left) or 1 (right); `camera` is placed on the hand."""
    name = L.ARM_NAMES[arm]
    side = 1.0 if arm == L.LEFT else -1.0
    body = _links(name, ARM_BITS[arm], _hand(name, ARM_BITS[arm], camera, calibration))
    shoulder = f"{SHOULDER[0]} {side * SHOULDER[1]} {SHOULDER[2]}"
    return ArmText(
        body=f'<body name="{name}_base" pos="{shoulder}" gravcomp="1">{body}</body>',
        actuators=_actuators(name, arm, calibration),
        tendon=f'<fixed name="{name}_opening"><joint joint="{name}_f0" coef="1"/><joint joint="{name}_f1" coef="1"/>'
        "</fixed>",
        equality=f'<joint joint1="{name}_f0" joint2="{name}_f1" polycoef="0 1 0 0 0" solref="0.008 1"/>',
    )


def _joint(name: str, i: int) -> str:
    r = JOINT_RANGE_RAD[i]
    return f'<joint name="{name}_j{i}" axis="{JOINT_AXES[i]}" range="-{r} {r}" armature="{ARMATURE[i]}" damping="0.5"/>'


def _visual(shape: str, rgba: str = "0.25 0.27 0.3 1", mass: float = 0.0, bits: tuple[int, int] = (0, 0)) -> str:
    return f'<geom {shape} rgba="{rgba}" mass="{mass}" contype="{bits[0]}" conaffinity="{bits[1]}" group="1"/>'


def _links(name: str, bit: int, hand: str) -> str:
    """The chain of seven bodies; only the forearm and the hand collide (with the other arm and the world)."""
    others = (bit, 1 | 2 | 16 | (12 - bit))
    upper = _visual(f'type="capsule" fromto="0.03 0 0 {UPPER_ARM - 0.02} 0 0" size="0.034"', mass=1.6)
    fore = _visual(f'type="capsule" fromto="0.04 0 0 {FOREARM - 0.06} 0 0" size="0.028"', mass=1.0, bits=others)
    blob = '<inertial pos="0 0 0" mass="0.3" diaginertia="0.0006 0.0006 0.0006"/>'
    ball = _visual('type="sphere" size="0.045"', "0.85 0.86 0.88 1")
    wrist = _visual('type="sphere" size="0.03"', "0.85 0.86 0.88 1")
    inner = f"<body>{_joint(name, 6)}{hand}</body>"
    inner = f'<body pos="{FOREARM} 0 0" gravcomp="1">{_joint(name, 5)}{blob}{wrist}{_comp(inner)}</body>'
    inner = f'<body gravcomp="1">{_joint(name, 4)}{fore}{inner}</body>'
    inner = f'<body pos="{UPPER_ARM} 0 0" gravcomp="1">{_joint(name, 3)}{blob}{ball}{inner}</body>'
    inner = f'<body gravcomp="1">{_joint(name, 2)}{upper}{inner}</body>'
    inner = f'<body gravcomp="1">{_joint(name, 1)}{blob}{inner}</body>'
    return f'{ball}<body gravcomp="1">{_joint(name, 0)}{blob}{inner}</body>'


def _comp(body: str) -> str:
    return body.replace("<body>", '<body gravcomp="1">', 1)


def _hand(name: str, bit: int, camera: str, calibration: RobotCalibration | None) -> str:
    """Palm, two sliding fingers, the tip site and the wrist camera, in the frame of the last joint."""
    others = (bit, 1 | 2 | 16 | (12 - bit))
    palm = _visual(f'type="box" pos="{HAND - 0.02} 0 0" size="0.02 0.078 0.022"', "0.2 0.2 0.22 1", 0.35, others)
    neck = _visual(f'type="capsule" fromto="0 0 0 {HAND - 0.03} 0 0" size="0.026"', mass=0.15)
    tip_x = HAND + L.FINGER_LENGTH - L.TIP_INSET
    site = f'<site name="{name}_tip" pos="{tip_x} 0 0" xyaxes="0 0 -1 0 1 0" size="0.004" rgba="1 0 0 0" group="4"/>'
    fingers = "".join(_finger(name, k, others, calibration) for k in range(2))
    return palm + neck + site + camera + fingers


def _finger(name: str, k: int, bits: tuple[int, int], calibration: RobotCalibration | None) -> str:
    sign = 1 if k == 0 else -1
    friction = 1.1 * (calibration.friction_scale if calibration else 1.0)
    half = L.FINGER_LENGTH / 2
    pos = f"{HAND + half} {sign * L.FINGER_HALF[1]} 0"
    geom = (
        f'<geom name="{name}_finger{k}" type="box" size="{half} {L.FINGER_HALF[1]} {L.FINGER_HALF[0]}" mass="0.05" '
        f'rgba="0.75 0.76 0.78 1" friction="{friction} 0.005 0.0001" contype="{bits[0]}" conaffinity="{bits[1]}"/>'
    )
    joint = (
        f'<joint name="{name}_f{k}" type="slide" axis="0 {sign} 0" range="0 {L.MAX_OPENING / 2}" armature="0.15" '
        'damping="2" solreflimit="0.01 1"/>'
    )
    return f'<body name="{name}_finger{k}" pos="{pos}" gravcomp="1">{joint}{geom}</body>'


def _actuators(name: str, arm: int, calibration: RobotCalibration | None) -> str:
    scale = calibration.gain_scale[7 * arm : 7 * arm + 7] if calibration else (1.0,) * 7
    joints = "".join(
        f'<position joint="{name}_j{i}" kp="{JOINT_KP[i] * scale[i]}" kv="{JOINT_KV[i] * scale[i]}" '
        f'forcerange="-{JOINT_FORCE[i]} {JOINT_FORCE[i]}"/>'
        for i in range(7)
    )
    return joints + (
        f'<position tendon="{name}_opening" kp="{GRIPPER_KP}" kv="{GRIPPER_KV}" '
        f'forcerange="-{GRIPPER_FORCE} {GRIPPER_FORCE}"/>'
    )
