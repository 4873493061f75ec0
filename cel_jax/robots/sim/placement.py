"""Where a reset puts things: drawn from a seed, scaled by `pose_range`."""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.parts import stand_height

FIXTURES = ("case_stack", "manual_rack", "cable_rack", "adapter_rack", "stand")
SETTLE_GAP_M = 0.0005  # parts start this far above their rest, so that nothing starts interpenetrating


@dataclasses.dataclass(frozen=True)
class Place:
    """A pose on a level plane: metres and radians."""

    x: float
    y: float
    z: float
    yaw: float

    def pose(self) -> np.ndarray:
        """float64 [7]: position and quaternion (w, x, y, z)."""
        return np.array([self.x, self.y, self.z, np.cos(self.yaw / 2), 0.0, 0.0, np.sin(self.yaw / 2)])

    def at(self, x: float, y: float, z: float, yaw: float) -> Place:
        """A place given in this place's frame (z absolute)."""
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return Place(float(self.x + c * x - s * y), float(self.y + s * x + c * y), z, self.yaw + yaw)


@dataclasses.dataclass(frozen=True)
class Placement:
    """One reset's scene: parts and fixtures by name, and the box's (x, y, yaw)."""

    parts: dict[str, Place]
    fixtures: dict[str, Place]
    box: Place


def draw_placement(rng: np.random.Generator, pose_range: float) -> Placement:
    """The places of one episode; `pose_range` 0 is the nominal scene, 1 the full variation."""

    def draw(s: L.Spread) -> Place:
        u = rng.uniform(-1.0, 1.0, 3) * pose_range
        return Place(s.x + u[0] * s.dx, s.y + u[1] * s.dy, 0.0, u[2] * s.dyaw)

    box = draw(L.BOX_SPREAD)
    racks = {"case_stack": L.CASE_SPREAD, "manual_rack": L.MANUAL_SPREAD, "cable_rack": L.CABLE_SPREAD}
    fixtures = {name: draw(spread) for name, spread in racks.items()}
    fixtures["adapter_rack"] = draw(L.ADAPTER_SPREAD)
    u = draw(L.LID_SPREAD)
    fixtures["stand"] = box.at(u.x, u.y, 0.0, u.yaw)
    on_lid = draw(L.PHONE_SPREAD)
    return Placement(_parts(fixtures, on_lid), fixtures, box)


def _parts(fixtures: dict[str, Place], on_lid: Place) -> dict[str, Place]:
    gap = SETTLE_GAP_M
    lid_z = stand_height() + L.LID_PLUG_DEPTH
    phone_z = lid_z + L.LID_TOP_Z + L.PHONE_HALF[2] + 2 * gap

    def on(rack: str, z: float) -> Place:
        return fixtures[rack].at(0.0, 0.0, z + gap, 0.0)

    return {
        "case": on("case_stack", L.PEDESTAL_Z + L.CASE_HALF[2]),
        "manual": on("manual_rack", L.PEDESTAL_Z + L.MANUAL_HALF[2]),
        "cable": on("cable_rack", L.CABLE_RACK_Z + L.CABLE_HALF[2]),
        "adapter": on("adapter_rack", L.ADAPTER_RACK_Z + L.ADAPTER_HALF[2]),
        "lid": on("stand", lid_z),
        "phone": fixtures["stand"].at(on_lid.x, on_lid.y, phone_z, on_lid.yaw),
    }
