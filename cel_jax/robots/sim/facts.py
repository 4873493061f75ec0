"""What the rules look at: the geometry of one moment, as plain numbers. No simulator in here.

Shape letters: O objects (layout.OBJECTS), 2 arms (left, right).
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from cel_jax.robots.sim import layout as L


@dataclasses.dataclass(frozen=True)
class Facts:
    """One moment. time_s; position [O, 3]; rotation [O, 3, 3]; speed [O] m/s; held bool [2, O]: both fingers of the
    gripper touch the object; touched bool [2, O]: at least one does; tip [2, 3] m; opening [2] m.
    World frame = robot base frame."""

    time_s: float
    position: np.ndarray
    rotation: np.ndarray
    speed: np.ndarray
    held: np.ndarray
    touched: np.ndarray
    tip: np.ndarray
    opening: np.ndarray

    @functools.cached_property
    def in_box(self) -> np.ndarray:
        """[O, 3]: positions in the box's frame (z up from the table)."""
        return (self.position - self.position[L.BOX]) @ self.rotation[L.BOX]

    @functools.cached_property
    def tip_in_box(self) -> np.ndarray:
        """[2, 3]: gripper tips in the box's frame."""
        return (self.tip - self.position[L.BOX]) @ self.rotation[L.BOX]

    @functools.cached_property
    def any_held(self) -> np.ndarray:
        """bool [O]: held by either gripper."""
        return np.asarray(self.held.any(axis=0))

    def tilt_rad(self, thing: int) -> float:
        """Angle between the object's z axis and the vertical, 0..pi."""
        return float(np.arccos(np.clip(self.rotation[thing, 2, 2], -1.0, 1.0)))

    def lean_rad(self, thing: int) -> float:
        """As `tilt_rad`, but an upside-down object counts as upright: 0..pi/2."""
        return float(np.arccos(min(1.0, abs(self.rotation[thing, 2, 2]))))

    def offset(self, thing: int, other: int) -> np.ndarray:
        """[3]: position of `thing` in the frame of `other`."""
        return (self.position[thing] - self.position[other]) @ self.rotation[other]


def in_interior(facts: Facts, thing: int, margin_m: float = 0.0) -> bool:
    """The object's centre is between the box's walls and below its rim."""
    x, y, z = facts.in_box[thing]
    hx, hy = L.BOX_INNER_HALF
    return bool(abs(x) < hx - margin_m and abs(y) < hy - margin_m and z < L.BOX_RIM_Z)


def on_pad(facts: Facts, thing: int, reach_m: float) -> bool:
    """The object's centre is above the pad."""
    dx, dy = facts.position[thing, :2] - L.PAD_XY
    return bool(abs(dx) < reach_m and abs(dy) < reach_m)
