"""How each skill moves the arms of the physical table.

Grasps: `top` comes from above, `side` from the robot, both with a light grip; `pinch` takes whichever of the two fits
the part's pose and squeezes hard. Lengths in metres, angles in radians.
"""

from __future__ import annotations

import itertools

import numpy as np

from cel_jax.planner.tabletop import physical_scene as P
from cel_jax.planner.tabletop.packing import SPOT
from cel_jax.planner.tabletop.physical_rig import Rig, axes_of, place_of, pose_of
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim import turns
from cel_jax.robots.sim.handwork import Handwork, Pose, up
from cel_jax.robots.sim.ik import rotation_error
from cel_jax.robots.sim.motions import Hands, Motion, together, wait

SIDE_PITCH = np.radians(48.0)  # steep enough to pass over what stands nearer to the robot
HOVER_Z, CARRY_Z = 0.20, 0.27
APPROACH_GAP, RELEASE_GAP, REST_GAP = 0.030, 0.013, 0.003
LIGHT_M, HARD_M = 0.006, 0.040  # how far beyond a part's width the fingers aim: 4 N and 22 N
LOWEST_TIP_Z, LOWEST_SIDE_TIP_Z = L.TIP_INSET + 0.0015, 0.032
WALL_TIP_Z = 0.068
NOISE_M = 0.0015


class TableWork(Handwork):
    """The motions of one trial. luck: the noise of its grasps and placements."""

    def __init__(self, rig: Rig, hands: Hands, luck: np.random.Generator) -> None:
        super().__init__(rig, hands)
        self._luck = luck

    def _noise(self) -> np.ndarray:
        return np.array([*self._luck.normal(0.0, NOISE_M, 2), 0.0])

    def _retire(self, arm: int) -> Motion:
        yield from self._rise(arm, CARRY_Z)
        yield from self._go_home(arm)

    # Grasping ----------------------------------------------------------------------------------------------------

    def grasp(self, arm: int, part: str, grasp: str) -> Motion:
        """Goes there and closes the fingers."""
        standing = pose_of(self._facts, part) == "standing"
        (position, rotation), width = self._grasp_pose(part, grasp == "side" or (grasp == "pinch" and standing))
        yield from self._reach(arm, position, rotation, min(L.MAX_OPENING, width + APPROACH_GAP))
        yield from self._hands.grip(arm, max(0.0, width - (HARD_M if grasp == "pinch" else LIGHT_M)), 0.25)

    def lift(self, arm: int) -> Motion:
        """Straight up, with whatever is between the fingers."""
        yield from self._rise(arm, CARRY_Z, 0.6)
        yield from wait(0.2)

    def let_go(self, arm: int) -> Motion:
        """Opens the hand where it is and takes it home."""
        yield from self._hands.grip(arm, L.MAX_OPENING / 2, 0.1)
        yield from self._retire(arm)

    def _grasp_pose(self, part: str, from_side: bool) -> tuple[Pose, float]:
        """The tip's pose, and the width between the fingers."""
        axes, half = axes_of(self._facts, part), np.array(P.SHAPES[part].half)
        centre = self._facts.position[L.OBJECTS.index(part)] + self._noise()
        across = 1 if abs(axes[2, 1]) < 0.7 else 2  # the part's width, unless that points up
        yaw = _half_turn(float(np.arctan2(-axes[0, across], axes[1, across])))
        rotation = turns.about_z(yaw) @ turns.about_y(-SIDE_PITCH if from_side else 0.0) @ turns.DOWN
        height = float(np.abs(axes[2]) @ half)
        rise = L.LID_FLANGE_Z + 0.012 if part == "lid" else max(0.004, height - 0.012)
        lowest = LOWEST_SIDE_TIP_Z if from_side else LOWEST_TIP_Z
        tip_z = max(float(centre[2]) + (0.0 if from_side else rise), lowest)
        return (np.array([centre[0], centre[1], tip_z]), rotation), 2.0 * float(half[across])

    def _reach(self, arm: int, position: np.ndarray, rotation: np.ndarray, opening: float) -> Motion:
        """Over whatever stands on the table, then along the fingers."""
        before = position - 0.10 * rotation[:, 2]
        above = np.array([before[0], before[1], max(before[2], HOVER_Z)])
        yield from self._rise(arm, CARRY_Z)
        yield from together(self._hands.move(arm, above, rotation), self._hands.grip(arm, opening))
        yield from self._hands.move(arm, before)
        yield from self._hands.move(arm, position, speed=0.7)
        yield from wait(0.1)

    # Placing -----------------------------------------------------------------------------------------------------

    def place(self, arm: int, part: str, spot: str) -> Motion:
        """Carries the held part level over its place, lowers it until it rests, lets go, and goes home."""
        goal, yaw = self._goal(part, spot)
        goal = goal + self._noise()
        yield from self._carry(arm, part, goal, yaw)
        if place_of(self._facts, part) != "held":  # lost on the way
            yield from self._retire(arm)
            return
        yield from self._lower(arm, part, goal)
        yield from self._hands.grip(arm, float(self._facts.opening[arm]) + RELEASE_GAP, 0.15)
        yield from self._rise(arm, CARRY_Z)
        if part == "lid" and spot != "tray":
            yield from self._press_lid(arm)
        yield from self._retire(arm)

    def _goal(self, part: str, spot: str) -> tuple[np.ndarray, float]:
        """Where the part's centre comes, and the heading of its long axis."""
        rest = P.SHAPES[part].half[2] + REST_GAP
        if spot == "tray":
            return np.array([*P.TRAY_XY, self._height_of_pile(part, "tray") + rest]), 0.0
        if part == "lid":
            return self._in_box(0.0, 0.0, L.BOX_RIM_Z + 0.004), self._box_yaw()
        if SPOT[part] == "bay":
            x, turn = P.BAYS[part]
            return self._in_box(x, 0.0, L.BOX_FLOOR + rest), self._box_yaw() + turn
        return self._in_box(0.0, 0.0, self._height_of_pile(part, "box") + rest), self._box_yaw()

    def _height_of_pile(self, part: str, where: str) -> float:
        """The top of what lies there already."""
        tops = [L.LEDGE_Z if where == "box" else 2 * P.TRAY_HALF[2]]
        for name, shape in P.SHAPES.items():
            if name != part and place_of(self._facts, name) == where:
                height = float(np.abs(axes_of(self._facts, name)[2]) @ np.array(shape.half))
                tops.append(float(self._facts.position[L.OBJECTS.index(name), 2]) + height)
        return max(tops)

    def _level_pose(self, arm: int, part: str, goal: np.ndarray, yaw: float) -> Pose:
        """The tip's pose that brings the held part to `goal`, level. Of all ways, the one with the hand on top."""
        hand = self._workplace.physics.tips()[1][arm]

        def cost(pose: Pose) -> float:
            return 3.0 * float(pose[1][2, 2]) + 0.3 * float(np.linalg.norm(rotation_error(hand, pose[1])))

        flips = (0.0,) if part == "lid" else (0.0, np.pi)
        turned = (turns.about_z(yaw + a) @ turns.about_x(b) for a, b in itertools.product((0.0, np.pi), flips))
        back = P.SHAPES[part].turn.T
        poses = [self._tip_for(arm, L.OBJECTS.index(part), goal, rotation @ back) for rotation in turned]
        return min(poses, key=cost)

    def _carry(self, arm: int, part: str, goal: np.ndarray, yaw: float) -> Motion:
        yield from self._rise(arm, CARRY_Z, 0.6)
        target, rotation = self._level_pose(arm, part, goal, yaw)
        yield from self._hands.move(arm, np.array([target[0], target[1], CARRY_Z - 0.03]), rotation, 0.5)
        yield from wait(0.1)

    def _lower(self, arm: int, part: str, goal: np.ndarray) -> Motion:
        """Straight down, corrected for how the part hangs in the fingers."""
        shift = goal - self._facts.position[L.OBJECTS.index(part)]
        over = self._hands.position[arm] + np.array([shift[0], shift[1], 0.0])
        yield from self._hands.move(arm, over, speed=0.5)
        yield from self._hands.move(arm, over + up(float(shift[2])), speed=0.5)
        yield from wait(0.15)

    def _press_lid(self, arm: int) -> Motion:
        """Closed fingers press the lid down in its middle."""
        x, y, _ = self._facts.position[L.LID]
        down = turns.about_z(turns.yaw_of(self._facts.rotation[L.LID])) @ turns.DOWN
        over = self._hands.move(arm, np.array([x, y, HOVER_Z]), down)
        yield from together(over, self._hands.grip(arm, 0.0))
        low = L.BOX_RIM_Z + L.LID_TOP_Z + L.TIP_INSET - 0.006
        yield from self._hands.move(arm, np.array([x, y, low]), speed=0.5)
        yield from wait(0.1)

    def straighten(self) -> Motion:
        """The left hand grips the box's left wall and brings the box to its nominal place."""
        arm, wall = L.LEFT, np.array([0.0, L.BOX_INNER_HALF[1] + L.BOX_WALL, WALL_TIP_Z])
        at = self._in_box(*(float(v) for v in wall))
        rotation = turns.about_z(self._box_yaw()) @ turns.DOWN
        yield from self._reach(arm, at, rotation, L.BOX_WALL + APPROACH_GAP)
        yield from self._hands.grip(arm, 0.0, 0.2)
        goal = np.array([*P.BOX_XY, 0.0]) + wall + self._noise()
        yield from self._hands.move(arm, goal, turns.DOWN, speed=0.4)
        yield from wait(0.2)
        yield from self._hands.grip(arm, L.BOX_WALL + APPROACH_GAP, 0.1)
        yield from self._retire(arm)


def _half_turn(angle: float) -> float:
    """Folded into (-pi/2, pi/2]: the fingers are alike."""
    return float((angle + np.pi / 2) % np.pi - np.pi / 2)
