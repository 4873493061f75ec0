"""What makes one simulated robot another robot than the next: a calibration drawn from the robot's seed."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

NUM_JOINTS = 14
CAMERAS = ("head", "left_wrist", "right_wrist")


@dataclasses.dataclass(frozen=True)
class CalibrationSpread:
    """Standard deviations (or half ranges) of the differences between robots. Zero makes all robots equal."""

    encoder_std_rad: float = 0.0035
    gain_range: float = 0.10
    friction_range: float = 0.15
    box_friction_range: float = 0.25
    camera_position_std_m: float = 0.006
    camera_angle_std_rad: float = 0.015
    light_range: float = 0.25
    tint_range: float = 0.10
    object_bias_std_m: float = 0.0010
    delay_max_substeps: int = 6


@dataclasses.dataclass(frozen=True)
class RobotCalibration:
    """One robot's hidden truth. Joint numbers: left arm 0-6, right arm 7-13.

    encoder_offset_rad [14]: reading minus true angle. gain_scale [14]. camera_shift_m [3 cameras][3],
    camera_turn_rad [3][3]. light_scale, light_tint [3]. object_bias_m [3]: error of the object poses of `state` mode.
    """

    robot_seed: int
    encoder_offset_rad: tuple[float, ...]
    gain_scale: tuple[float, ...]
    friction_scale: float
    box_friction_scale: float
    camera_shift_m: tuple[tuple[float, ...], ...]
    camera_turn_rad: tuple[tuple[float, ...], ...]
    light_scale: float
    light_tint: tuple[float, ...]
    object_bias_m: tuple[float, ...]
    delay_substeps: int

    @property
    def robot_id(self) -> str:
        return f"sim-{self.robot_seed:04d}"

    @property
    def hash(self) -> str:
        """16 hex digits over every number above."""
        text = repr(dataclasses.astuple(self)).encode()
        return hashlib.sha256(text).hexdigest()[:16]


def draw_calibration(robot_seed: int, spread: CalibrationSpread | None = None) -> RobotCalibration:
    """The calibration of robot `robot_seed`: the same seed always makes the same robot."""
    s = spread or CalibrationSpread()
    rng = np.random.default_rng([0xCA11B, abs(int(robot_seed)), int(robot_seed < 0)])
    return RobotCalibration(
        robot_seed=int(robot_seed),
        encoder_offset_rad=_floats(rng.normal(0.0, s.encoder_std_rad, NUM_JOINTS)),
        gain_scale=_floats(1.0 + rng.uniform(-s.gain_range, s.gain_range, NUM_JOINTS)),
        friction_scale=float(1.0 + rng.uniform(-s.friction_range, s.friction_range)),
        box_friction_scale=float(1.0 + rng.uniform(-s.box_friction_range, s.box_friction_range)),
        camera_shift_m=tuple(_floats(v) for v in rng.normal(0.0, s.camera_position_std_m, (len(CAMERAS), 3))),
        camera_turn_rad=tuple(_floats(v) for v in rng.normal(0.0, s.camera_angle_std_rad, (len(CAMERAS), 3))),
        light_scale=float(1.0 + rng.uniform(-s.light_range, s.light_range)),
        light_tint=_floats(1.0 + rng.uniform(-s.tint_range, s.tint_range, 3)),
        object_bias_m=_floats(rng.normal(0.0, s.object_bias_std_m, 3)),
        delay_substeps=int(rng.integers(0, s.delay_max_substeps + 1)),
    )


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
