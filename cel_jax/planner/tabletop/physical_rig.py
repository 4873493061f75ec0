"""The simulated packing table: arms, parts and contacts, and what can be read from them.

Between motions no time passes. Everything that is said about the scene comes from the simulated poses and contacts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cel_jax.planner.tabletop import physical_scene as P
from cel_jax.planner.tabletop.packing import Part
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim import parts as sim_parts
from cel_jax.robots.sim import scene, turns
from cel_jax.robots.sim.calibration import CalibrationSpread, RobotCalibration, draw_calibration
from cel_jax.robots.sim.driver import Driver
from cel_jax.robots.sim.engine import mujoco
from cel_jax.robots.sim.facts import Facts, in_interior
from cel_jax.robots.sim.ik import ArmKinematics
from cel_jax.robots.sim.motions import Hands, Motion, wait
from cel_jax.robots.sim.physics import Physics, home_q
from cel_jax.robots.sim.sight import Sight
from cel_jax.robots.sim.stages import lid_seated

NOMINAL = CalibrationSpread(*(0.0,) * 9, delay_max_substeps=0)
SETTLE_S, MOTION_LIMIT_S = 0.3, 60.0
STANDING_COSINE, TURNED_RAD = 0.7, 0.2


class Rig:
    """One table with two arms; `facts` is the present moment."""

    facts: Facts

    def __init__(self) -> None:
        calibration = draw_calibration(0, NOMINAL)
        self.physics = Physics(calibration, _model(calibration))
        self.kinematics = ArmKinematics()

    def reset(self, parts: Mapping[str, Part], turned: bool, rng: np.random.Generator) -> Hands:
        """Sets the scene, lets it settle, and gives the two hands, at home."""
        self.physics.reset(P.draw_placement(rng, parts, turned), home_q())
        self._driver = Driver(self.physics, self.kinematics, 1.0)
        self.play(wait(SETTLE_S))
        return self._driver.hands

    def play(self, motion: Motion) -> None:
        """Plays a motion through the joint controllers. `facts` is kept up to date for it."""
        sight = Sight(self.physics)
        for _ in motion:
            self.physics.step(self._driver.action())
            self.facts = sight.look(float(self.physics.data.time))
        self.read()

    def read(self) -> Facts:
        """Looks again; also after somebody has moved things in the simulation."""
        mujoco.mj_fwdPosition(self.physics.model, self.physics.data)
        self.facts = Sight(self.physics).look(float(self.physics.data.time))
        return self.facts


def _model(calibration: RobotCalibration) -> mujoco.MjModel:
    """The compiled scene, with the slick parts' friction in place of the fingers' rubber."""
    things = sim_parts.small_parts(1.0) + sim_parts.lid(1.0) + sim_parts.packaging_box(1.0, 1.0) + P.things_xml()
    model = mujoco.MjModel.from_xml_string(scene.arms_and(things, calibration))
    for name, friction in P.SLICK.items():
        geoms = model.geom_bodyid == model.body(name).id
        model.geom_priority[geoms], model.geom_friction[geoms, 0] = 1, friction
    return model


def axes_of(facts: Facts, part: str) -> np.ndarray:
    """[3, 3]: the part's long, wide and thin axes as columns."""
    return np.asarray(facts.rotation[L.OBJECTS.index(part)] @ P.SHAPES[part].turn)


def place_of(facts: Facts, part: str) -> str:
    """`held`, `box`, `tray`, `table` or `floor`."""
    thing = L.OBJECTS.index(part)
    x, y, z = facts.position[thing]
    if facts.any_held[thing]:
        return "held"
    if z < P.FALLEN_Z:
        return "floor"
    if lid_seated(facts) if part == "lid" else in_interior(facts, thing):
        return "box"
    on_tray = abs(x - P.TRAY_XY[0]) < P.TRAY_HALF[0] and abs(y - P.TRAY_XY[1]) < P.TRAY_HALF[1]
    return "tray" if on_tray else "table"


def pose_of(facts: Facts, part: str) -> str:
    """`standing` on its short side, or `flat`."""
    return "standing" if abs(axes_of(facts, part)[2, 0]) > STANDING_COSINE else "flat"


def side_of(facts: Facts, part: str) -> str:
    """The arm that is nearer."""
    return "left" if facts.position[L.OBJECTS.index(part), 1] > 0 else "right"


def box_turned(facts: Facts) -> bool:
    """Whether the box stands too much askew to be packed."""
    return abs(turns.yaw_of(facts.rotation[L.BOX], 2 * np.pi)) > TURNED_RAD
