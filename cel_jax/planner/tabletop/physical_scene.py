"""The packing table's scene for the simulator: where parts lie or stand, which are slick, and what holds them up.

Lengths in metres, angles in radians; the frame and the sizes are those of `cel_jax.robots.sim.layout`. A part's own
axes are reordered so that x is its long side, y its width (the grippers close along it) and z its thickness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from cel_jax.planner.tabletop.packing import Part
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.parts import FIXTURE_BITS, geom
from cel_jax.robots.sim.placement import Place, Placement
from cel_jax.robots.sim.turns import about_y

BOX_XY, TURNED_RAD = (0.42, 0.0), (0.32, 0.48)
TRAY_XY, TRAY_HALF = (0.20, 0.0), (0.100, 0.075, 0.0015)
FLOOR_Z, FALLEN_Z, PARKED_X = -0.5, -0.02, 1.5  # parts that a task lacks rest on the floor, out of reach
# Places along the box's long side and headings there: the adapter lies across its bay.
BAYS = {"cable": (sum(L.CABLE_BAY_X) / 2, 0.0), "adapter": (sum(L.ADAPTER_BAY_X) / 2, np.pi / 2)}
JITTER_M, JITTER_RAD = 0.006, 0.06
HOLDER_Z, HOLDER_GAP = 0.030, 0.0015

# Low friction wins over the fingers' rubber, so that only a hard squeeze holds these two.
SLICK = {"manual": 0.04, "phone": 0.10}


@dataclasses.dataclass(frozen=True)
class Shape:
    """half: half sizes along the reordered axes. turn: columns are the reordered axes in the body's frame.
    slot: place on the left side; the right side mirrors it. held_up: a holder keeps it standing.
    """

    half: tuple[float, float, float]
    slot: tuple[float, float]
    held_up: bool = False
    turn: np.ndarray = dataclasses.field(default_factory=lambda: np.eye(3))


# The lid's half sizes are those of the block that is held; its frame lies `LID_PLUG_DEPTH` above its lowest point.
SHAPES: dict[str, Shape] = {
    "cable": Shape(L.CABLE_HALF, (0.17, 0.36)),
    "adapter": Shape((L.ADAPTER_HALF[2], *L.ADAPTER_HALF[:2]), (0.13, 0.20), turn=about_y(-np.pi / 2)),
    "case": Shape(L.CASE_HALF, (0.43, 0.36), held_up=True),
    "manual": Shape(L.MANUAL_HALF, (0.25, 0.20), held_up=True),
    "phone": Shape(L.PHONE_HALF, (0.28, 0.36), held_up=True),
    "lid": Shape((*L.LID_BLOCK_HALF, L.LID_PLUG_DEPTH), (0.42, 0.20)),
}


def things_xml() -> str:
    """The floor, the tray, and holders (mocap bodies: a reset moves them) for flat parts that stand on end."""
    floor = f'<geom name="floor" type="plane" pos="0 0 {FLOOR_Z}" size="4 4 0.1" contype="1" conaffinity="2"/>'
    tray = geom((*TRAY_XY, TRAY_HALF[2]), TRAY_HALF, "0.4 0.45 0.4 1", FIXTURE_BITS)
    return floor + tray + "".join(_holder(name) for name, shape in SHAPES.items() if shape.held_up)


def _holder(name: str) -> str:
    """Two ridges with the part between them, narrow, so that fingers reach its sides."""
    x = SHAPES[name].half[2] + HOLDER_GAP + 0.004
    half = (0.004, 0.015, HOLDER_Z / 2)
    ridges = (geom((s * x, 0, HOLDER_Z / 2), half, "0.3 0.3 0.33 1", FIXTURE_BITS) for s in (-1, 1))
    return f'<body name="{name}_holder" mocap="true">{"".join(ridges)}</body>'


@dataclasses.dataclass(frozen=True)
class Tilted(Place):
    """A place turned about its y axis by `pitch` before the yaw."""

    pitch: float = 0.0

    def pose(self) -> np.ndarray:
        """float64 [7]: position and quaternion (w, x, y, z)."""
        cy, sy, cp, sp = np.cos(self.yaw / 2), np.sin(self.yaw / 2), np.cos(self.pitch / 2), np.sin(self.pitch / 2)
        return np.array([self.x, self.y, self.z, cy * cp, -sy * sp, cy * sp, sy * cp])


def draw_placement(rng: np.random.Generator, parts: Mapping[str, Part], turned: bool) -> Placement:
    """Where everything starts."""
    sign = 1.0 if rng.random() < 0.5 else -1.0
    yaw = sign * rng.uniform(*TURNED_RAD) if turned else rng.uniform(-JITTER_RAD, JITTER_RAD)
    x, y = np.array(BOX_XY) + rng.uniform(-JITTER_M, JITTER_M, 2)
    box = Place(float(x), float(y), 0.0, float(yaw))
    places, holders = {}, {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        draw, away = rng.uniform(-1.0, 1.0, 3), Place(PARKED_X, 0.25 * i, FLOOR_Z + 0.05, 0.0)
        places[name] = _place(shape, parts[name], draw) if name in parts else away
        if shape.held_up:
            stands = name in parts and parts[name].pose == "standing"
            here = places[name]
            holders[f"{name}_holder"] = Place(here.x, here.y, 0.0, here.yaw) if stands else away
    return Placement(places, holders, box)


def _place(shape: Shape, part: Part, draw: np.ndarray) -> Tilted:
    side = 1.0 if part.side == "left" else -1.0
    x, y = np.array([shape.slot[0], side * shape.slot[1]]) + JITTER_M * draw[:2]
    standing = part.pose == "standing"
    reorder = np.pi / 2 if shape.turn[2, 0] > 0.5 else 0.0  # the body's own long axis is z
    pitch = reorder - (np.pi / 2 if standing else 0.0)
    return Tilted(x, y, shape.half[0 if standing else 2] + 0.0005, JITTER_RAD * draw[2], pitch)
