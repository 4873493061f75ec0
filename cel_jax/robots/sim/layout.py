"""Dimensions and nominal places of the phone packaging scene: one source for the scene, the rules and the expert.

Lengths in metres, angles in radians, masses in kilograms. Frame: the robots' base, x forward, y to the left, z up,
z = 0 on the table top. A part's long side lies along x; the grippers close along y.
"""

from __future__ import annotations

import dataclasses

OBJECTS = ("case", "manual", "cable", "adapter", "phone", "lid", "box")
CASE, MANUAL, CABLE, ADAPTER, PHONE, LID, BOX = range(len(OBJECTS))
LEFT, RIGHT = 0, 1
ARM_NAMES = ("left", "right")

# Half sizes (x, y, z) of the parts that are single boxes.
CASE_HALF = (0.063, 0.038, 0.004)
MANUAL_HALF = (0.055, 0.033, 0.005)
CABLE_HALF = (0.026, 0.022, 0.012)
ADAPTER_HALF = (0.013, 0.013, 0.032)
PHONE_HALF = (0.066, 0.040, 0.005)

# The box: its frame lies on the table at the centre of its floor's lower side.
BOX_INNER_HALF = (0.085, 0.060)
BOX_WALL = 0.008
BOX_FLOOR = 0.004
BOX_RIM_Z = 0.078
LEDGE_Z = 0.032
LEDGE_DEPTH = 0.012
DIVIDER_X = 0.008
DIVIDER_HALF = 0.003
CABLE_BAY_X = (-BOX_INNER_HALF[0] + LEDGE_DEPTH, DIVIDER_X - DIVIDER_HALF)
ADAPTER_BAY_X = (DIVIDER_X + DIVIDER_HALF, BOX_INNER_HALF[0] - LEDGE_DEPTH)

# The lid: its frame lies at the centre of the flange's lower side (on the rim when closed).
LID_FLANGE_HALF = (0.093, 0.068)
LID_FLANGE_Z = 0.004
LID_BLOCK_HALF = (0.080, 0.054)
LID_BLOCK_Z = 0.012
LID_TOP_Z = LID_FLANGE_Z + LID_BLOCK_Z
LID_PLUG_TOP_HALF = (0.083, 0.058)
LID_PLUG_BOTTOM_HALF = (0.071, 0.046)
LID_PLUG_DEPTH = 0.012
LID_GAP_OVER_RIM = 0.003

# Fixtures.
PEDESTAL_Z = 0.030
PEDESTAL_HALF_Y = 0.022
PAD_HALF = (0.052, 0.024, 0.007)
PAD_XY = (0.46, -0.175)
CABLE_RACK_Z = 0.012
ADAPTER_RACK_Z = 0.040
ADAPTER_POCKET_DEPTH = 0.012
ADAPTER_LIP = 0.004

# Grippers.
MAX_OPENING = 0.140
FINGER_LENGTH = 0.100
FINGER_HALF = (0.010, 0.0045)
TIP_INSET = 0.010


@dataclasses.dataclass(frozen=True)
class Spread:
    """A nominal place on the table and how far a reset moves it (uniform, scaled by `pose_range`)."""

    x: float
    y: float
    dx: float
    dy: float
    dyaw: float


BOX_SPREAD = Spread(0.46, 0.0, 0.015, 0.012, 0.08)
LID_SPREAD = Spread(0.0, 0.141, 0.012, 0.003, 0.05)  # relative to the box
CASE_SPREAD = Spread(0.45, -0.315, 0.025, 0.020, 0.16)
MANUAL_SPREAD = Spread(0.29, -0.20, 0.020, 0.020, 0.16)
CABLE_SPREAD = Spread(0.32, -0.36, 0.020, 0.020, 0.16)
ADAPTER_SPREAD = Spread(0.31, 0.27, 0.025, 0.025, 0.16)
PHONE_SPREAD = Spread(0.0, 0.0, 0.010, 0.006, 0.05)  # relative to the lid

# Reach of the two arms on the table, for "dropped outside reach": x low, x high, y low, y high.
REACH_XY = (0.20, 0.62, -0.46, 0.42)
