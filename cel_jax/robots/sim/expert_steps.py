"""How each of the ten steps is done: poses and motions of the scripted demonstrator.

Every step looks at the scene when it starts, so that it continues what is half done. Lengths in metres.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim import stages as S
from cel_jax.robots.sim import turns
from cel_jax.robots.sim.facts import in_interior
from cel_jax.robots.sim.handwork import Handwork, Pose, level, up
from cel_jax.robots.sim.motions import Hands, Motion, in_turn, together, wait
from cel_jax.robots.sim.styles import OperatorStyle
from cel_jax.robots.sim.world import PackagingWorld

CLOSE_HOLD_S = 0.17
MISS_M, MISS_BEYOND_M = 0.055, 0.028
LEFT_PITCH = np.pi / 3
HANDOVER_POINT = np.array([0.36, 0.02, 0.24])
HANDOVER_WAIT = np.array([0.38, -0.08, 0.34])
BRACE_TILT, PUSH_TILT, LID_TILT = 0.70, 0.15, 0.10
LID_OFFSET_Y = 0.017
# Tip heights over a part's centre when it is grasped (the finger ends 10 mm below the tip).
GRASP_RISE = {L.CASE: 0.004, L.MANUAL: 0.0065, L.CABLE: 0.002, L.LID: L.LID_FLANGE_Z + 0.012}
WIDTH = {
    L.CASE: 2 * L.CASE_HALF[1], L.MANUAL: 2 * L.MANUAL_HALF[1], L.CABLE: 2 * L.CABLE_HALF[1],
    L.ADAPTER: 2 * L.ADAPTER_HALF[1], L.LID: 2 * L.LID_BLOCK_HALF[1],
}  # fmt: skip
LENGTH = {L.CASE: 0.126, L.MANUAL: 0.110, L.CABLE: 0.052, L.LID: 0.160}
APPROACH_GAP = 0.030


class Steps(Handwork):
    """The ten steps for one trial."""

    def __init__(self, world: PackagingWorld, hands: Hands, style: OperatorStyle, rng: np.random.Generator) -> None:
        super().__init__(world, hands)
        self._world, self._style, self._rng = world, style, rng
        self.deliberate_error = False
        self._stage = 0
        self._order = (
            self._case_to_pad, self._manual_to_case, self._cable_to_bay, self._take_adapter, self._hand_over,
            self._place_adapter, self._case_to_box, self._push_phone, self._lid_over, self._close_lid,
        )  # fmt: skip

    def motion(self, stage: int) -> Motion:
        """The motion for step `stage` (0..9) from here; afterwards, stillness."""
        if stage >= len(self._order):
            return wait(0.1)
        self._stage = stage
        return in_turn(self._let_go(stage), self._order[stage]())

    def _let_go(self, stage: int) -> Motion:
        """Opens a gripper that still holds what this step does not want held (after a take-over)."""
        for arm in (L.LEFT, L.RIGHT):
            wrong = [t for t in np.flatnonzero(self._facts.held[arm]) if t not in S.STAGES[stage].may_hold]
            if wrong:
                yield from self._hands.grip(arm, float(self._facts.opening[arm]) + 0.03, 0.07)
                yield from self._rise(arm, self._hands.position[arm][2] + 0.05)

    def _noise(self) -> np.ndarray:
        noise_mm = self._style.noise_at(self._stage)
        return np.array([*self._rng.normal(0.0, noise_mm / 1000.0, 2), 0.0])

    # Picking and placing -----------------------------------------------------------------------------------------

    def _top_grasp(self, thing: int) -> Pose:
        """Hand straight down over a level part, closing across its width."""
        f = self._facts
        lift = up(GRASP_RISE[thing])
        return f.position[thing] + lift, turns.about_z(turns.yaw_of(f.rotation[thing])) @ turns.DOWN

    def _pick(self, arm: int, thing: int, grasp: Callable[[], Pose], back: np.ndarray, lift_z: float) -> Motion:
        """Grasps until the part is held; `back` leads from the grasp to the point before it. Then lifts."""
        opening = min(L.MAX_OPENING, WIDTH[thing] + APPROACH_GAP)
        miss, stage = self._rng.random() < self._style.miss_probability, self._world.stage()
        while not self._facts.held[arm, thing]:
            self.deliberate_error = miss
            position, rotation = grasp()
            position = position + self._noise() + (self._miss_offset(thing, rotation) if miss else 0.0)
            yield from self._approach(arm, position, rotation, back, opening)
            if self._world.stage() != stage:  # the part came to its place by itself
                yield from self._back_off(arm, position + back, opening)
                return
            yield from self._hands.grip(arm, 0.0 if miss else max(0.0, WIDTH[thing] - 0.04), CLOSE_HOLD_S)
            if not self._facts.held[arm, thing]:
                yield from self._hands.grip(arm, 0.0, 0.1)
                yield from self._back_off(arm, position + back, opening)
            miss = self.deliberate_error = False
        yield from self._rise(arm, lift_z)

    def _miss_offset(self, thing: int, rotation: np.ndarray) -> np.ndarray:
        """Where the fingers close on nothing: beyond the end of a level part, or short of the adapter."""
        if thing == L.ADAPTER:
            return -MISS_M * rotation[:, 2]
        side = -1.0 if self._rng.random() < 0.5 else 1.0
        along = LENGTH[thing] / 2 + MISS_BEYOND_M
        return side * along * np.array([rotation[0, 0], rotation[1, 0], 0.0])

    def _place(self, arm: int, thing: int, position: np.ndarray, yaw: float, release: float, over_z: float) -> Motion:
        """Carries a held level part over its place, lowers it, lets go and rises."""
        held = turns.yaw_of(self._facts.rotation[thing])
        heading = turns.about_z(yaw) @ turns.about_z(-held) @ level(self._facts.rotation[thing])
        target, rotation = self._tip_for(arm, thing, position + self._noise(), heading)
        yield from self._hands.move(arm, np.array([target[0], target[1], over_z]), rotation)
        yield from self._hands.move(arm, target, speed=0.7)
        yield from wait(0.07)
        yield from self._hands.grip(arm, WIDTH[thing] + release, 0.07)
        yield from self._rise(arm, over_z)

    # The steps ---------------------------------------------------------------------------------------------------

    def _case_to_pad(self) -> Motion:
        yield from self._pick(L.RIGHT, L.CASE, lambda: self._top_grasp(L.CASE), UP, 0.10)
        place = np.array([*L.PAD_XY, 2 * L.PAD_HALF[2] + L.CASE_HALF[2] + 0.002])
        yield from self._place(L.RIGHT, L.CASE, place, 0.0, 0.03, 0.09)

    def _manual_to_case(self) -> Motion:
        yield from self._pick(L.RIGHT, L.MANUAL, lambda: self._top_grasp(L.MANUAL), UP, 0.10)
        case = self._facts.position[L.CASE] + up(L.CASE_HALF[2] + L.MANUAL_HALF[2] + 0.002)
        yaw = turns.yaw_of(self._facts.rotation[L.CASE])
        yield from self._place(L.RIGHT, L.MANUAL, case, yaw, 0.03, 0.09)

    def _cable_to_bay(self) -> Motion:
        yield from self._pick(L.RIGHT, L.CABLE, lambda: self._top_grasp(L.CABLE), UP, 0.14)
        place = self._in_box(sum(L.CABLE_BAY_X) / 2, 0.0, L.BOX_FLOOR + L.CABLE_HALF[2] + 0.004)
        yield from self._place(L.RIGHT, L.CABLE, place, self._box_yaw(), 0.02, 0.14)

    def _side_grasp(self) -> Pose:
        """The left hand comes from the robot's side, low, so that the adapter's top stays free."""
        f = self._facts
        yaw = turns.yaw_of(f.rotation[L.ADAPTER], np.pi / 2)
        rotation = turns.about_z(yaw) @ turns.about_y(-LEFT_PITCH) @ turns.DOWN
        return f.position[L.ADAPTER] + up(-0.010), rotation

    def _take_adapter(self) -> Motion:
        back = -0.08 * self._side_grasp()[1][:, 2]
        take = self._pick(L.LEFT, L.ADAPTER, self._side_grasp, back, 0.16)
        yield from together(take, self._go_home(L.RIGHT))

    def _hand_over(self) -> Motion:
        yield from together(
            self._hands.move(L.LEFT, HANDOVER_POINT, turns.about_y(-LEFT_PITCH) @ turns.DOWN),
            self._hands.grip(L.RIGHT, WIDTH[L.ADAPTER] + APPROACH_GAP),
            self._hands.move(L.RIGHT, HANDOVER_WAIT, turns.DOWN),
        )
        yield from self._take_over()
        yield from self._hands.grip(L.LEFT, WIDTH[L.ADAPTER] + 0.03, 0.1)
        left_back = self._hands.position[L.LEFT] - 0.09 * self._hands.rotation[L.LEFT][:, 2]
        yield from together(
            in_turn(self._hands.move(L.LEFT, left_back), self._go_home(L.LEFT)),
            in_turn(wait(0.2), self._rise(L.RIGHT, HANDOVER_POINT[2] + 0.06)),
        )

    def _top_of_adapter(self, tries: int) -> Pose:
        f = self._facts
        up = f.rotation[L.ADAPTER][:, 2]
        yaw = turns.yaw_of(f.rotation[L.ADAPTER], np.pi / 2)
        return f.position[L.ADAPTER] + (0.027 + 0.003 * min(tries, 2)) * up, turns.about_z(yaw) @ turns.DOWN

    def _take_over(self) -> Motion:
        """The right hand grasps the adapter's top, in mid-air."""
        tries = 0
        while not self._facts.held[L.RIGHT, L.ADAPTER]:
            position, rotation = self._top_of_adapter(tries)
            tries += 1
            position = position + self._noise()
            yield from self._hands.move(L.RIGHT, position + up(0.06), rotation)
            yield from self._hands.move(L.RIGHT, position, speed=0.7)
            yield from self._hands.grip(L.RIGHT, 0.0, CLOSE_HOLD_S)
            if not self._facts.held[L.RIGHT, L.ADAPTER]:
                yield from self._back_off(L.RIGHT, position + up(0.06), WIDTH[L.ADAPTER] + APPROACH_GAP)

    def _place_adapter(self) -> Motion:
        if self._facts.held[L.RIGHT, L.ADAPTER]:
            yield from self._stand_adapter()
        yield from self._tip_adapter()

    def _stand_adapter(self) -> Motion:
        bay = self._in_box(sum(L.ADAPTER_BAY_X) / 2, -0.024, L.BOX_FLOOR + L.ADAPTER_HALF[2] + 0.002)
        yaw = self._box_yaw()
        held = turns.yaw_of(self._facts.rotation[L.ADAPTER], np.pi / 2)
        heading = turns.about_z(yaw - held) @ level(self._facts.rotation[L.ADAPTER])
        target, rotation = self._tip_for(L.RIGHT, L.ADAPTER, bay + self._noise(), heading)
        yield from self._hands.move(L.RIGHT, target + up(0.09), rotation)
        yield from self._hands.move(L.RIGHT, target, speed=0.7)
        yield from wait(0.07)
        yield from self._hands.grip(L.RIGHT, WIDTH[L.ADAPTER] + 0.010, 0.2)

    def _tip_adapter(self) -> Motion:
        """The finger on the adapter's right side pushes its top over to the left."""
        f = self._facts
        x, y, _ = f.in_box[L.ADAPTER]
        rotation = turns.about_z(self._box_yaw()) @ turns.DOWN
        top = L.BOX_FLOOR + 2 * L.ADAPTER_HALF[2]
        if np.linalg.norm(f.tip_in_box[L.RIGHT][:2] - [x, y]) > 0.012:
            yield from self._rise(L.RIGHT, 0.14)
            yield from together(
                self._hands.move(L.RIGHT, self._in_box(x, y, 0.14), rotation),
                self._hands.grip(L.RIGHT, WIDTH[L.ADAPTER] + 0.014),
            )
        yield from self._hands.move(L.RIGHT, self._in_box(x, y, top + 0.001))
        yield from self._hands.move(L.RIGHT, self._in_box(x, y + 0.035, top + 0.004), speed=0.6)
        yield from self._rise(L.RIGHT, 0.14)

    def _case_to_box(self) -> Motion:
        if not S.case_in_box(self._facts):
            yield from self._pick(L.RIGHT, L.CASE, lambda: self._top_grasp(L.CASE), UP, 0.13)
            place = self._in_box(0.0, 0.0, L.LEDGE_Z + L.CASE_HALF[2] + 0.003)
            yield from self._place(L.RIGHT, L.CASE, place, self._box_yaw(), 0.014, 0.14)

    def _brace(self) -> Motion:
        """The right hand, closed, against the outer side of the box's right wall."""
        if S.braced(self._facts):
            return
        rotation = turns.about_z(self._box_yaw()) @ turns.about_x(BRACE_TILT) @ turns.DOWN
        yield from self._rise(L.RIGHT, 0.13)
        y = -L.BOX_INNER_HALF[1] - L.BOX_WALL - 0.0145
        above = self._in_box(0.0, y - 0.06, 0.13)
        yield from together(self._hands.move(L.RIGHT, above, rotation), self._hands.grip(L.RIGHT, 0.0))
        yield from self._hands.move(L.RIGHT, self._in_box(0.0, y - 0.02, 0.045))
        yield from self._hands.move(L.RIGHT, self._in_box(0.0, y, 0.040))

    def _push_rotation(self) -> np.ndarray:
        return turns.about_z(self._box_yaw()) @ turns.about_x(-PUSH_TILT) @ turns.DOWN

    def _push_phone(self) -> Motion:
        if in_interior(self._facts, L.PHONE) and S.braced(self._facts):
            yield from self._press(L.PHONE)
            return
        x, y, z = self._facts.in_box[L.PHONE] + self._noise()
        start, rotation = y + L.PHONE_HALF[1] + 0.030, self._push_rotation()
        yield from together(
            self._brace(),
            in_turn(
                together(
                    self._hands.move(L.LEFT, self._in_box(x, start + 0.02, 0.17), rotation),
                    self._hands.grip(L.LEFT, 0.0),
                ),
                self._hands.move(L.LEFT, self._in_box(x, start, z + 0.008)),
            ),
        )
        end = L.PHONE_HALF[1] + 0.018
        yield from self._hands.move(L.LEFT, self._in_box(x, end, L.BOX_RIM_Z + 0.020), speed=0.6)
        yield from self._rise(L.LEFT, 0.13)

    def _press(self, thing: int) -> Motion:
        """Presses on the side of the phone that points into the box and draws it to the middle: flat."""
        x, y, _ = self._facts.in_box[thing]
        side = 0.018 if y > 0 else -0.018
        spot, rotation = self._in_box(x, y - side, 0.0), turns.about_z(self._box_yaw()) @ turns.DOWN
        low = L.LEDGE_Z + 2 * (L.CASE_HALF[2] + L.MANUAL_HALF[2] + L.PHONE_HALF[2]) + L.TIP_INSET - 0.003
        yield from self._hands.move(L.LEFT, spot + up(0.14), rotation)
        yield from self._hands.move(L.LEFT, spot + up(low), speed=0.7)
        yield from self._hands.move(L.LEFT, self._in_box(0.0, -side, low), speed=0.4)
        yield from self._rise(L.LEFT, 0.14)

    def _in_lid(self, x: float, y: float, z: float) -> np.ndarray:
        f = self._facts
        return f.position[L.LID] + f.rotation[L.LID] @ np.array([x, y, z])

    def _lid_over(self) -> Motion:
        yield from self._brace()
        if not self._world.referee.memory.lid_cleared:
            yield from self._drag_lid()
            return
        if not self._facts.held[L.LEFT, L.LID]:
            yield from self._pick(L.LEFT, L.LID, lambda: self._top_grasp(L.LID), UP, 0.15)
        yield from self._lay_lid()

    def _drag_lid(self) -> Motion:
        """One finger's width beside the block, on the flange, draws the lid away from the box."""
        rotation = turns.about_z(turns.yaw_of(self._facts.rotation[L.LID])) @ turns.about_x(-0.2) @ turns.DOWN
        y, z = -L.LID_BLOCK_HALF[1] - 0.020, L.LID_FLANGE_Z + 0.013
        noise = self._noise()
        yield from self._hands.move(L.LEFT, self._in_lid(0.0, y, 0.05) + noise, rotation)
        yield from self._hands.move(L.LEFT, self._in_lid(0.0, y, z) + noise)
        yield from self._hands.move(L.LEFT, self._in_lid(0.0, y + 0.045, z) + noise, speed=0.6)
        yield from self._rise(L.LEFT, 0.15)

    def _lay_lid(self) -> Motion:
        """Over the box, a little to the left and leaning to the right, so that the plug's right side dips in."""
        tilted = turns.about_z(self._box_yaw()) @ turns.about_x(LID_TILT)
        goal = self._in_box(0.0, LID_OFFSET_Y, L.BOX_RIM_Z + 0.009) + self._noise()
        target, rotation = self._tip_for(L.LEFT, L.LID, goal, tilted)
        yield from self._hands.move(L.LEFT, target + up(0.05), rotation)
        yield from self._hands.move(L.LEFT, target, speed=0.7)
        yield from self._hands.grip(L.LEFT, L.MAX_OPENING, 0.1)
        yield from self._rise(L.LEFT, 0.15)

    def _close_lid(self) -> Motion:
        """Pushes the lid into line from the left and presses it down."""
        yield from self._brace()
        rotation = self._push_rotation()
        x, y, _ = self._facts.in_box[L.LID]
        if abs(y) > 0.004 or not S.lid_seated(self._facts):
            yield from self._align_lid(x, y, rotation)
        yield from self._rise(L.LEFT, 0.13)
        yield from self._press_lid(rotation)

    def _press_lid(self, rotation: np.ndarray) -> Motion:
        """Presses the lid down where it stands highest."""
        f = self._facts
        lean = f.rotation[L.BOX].T @ f.rotation[L.LID][:, 2]
        x, y = f.in_box[L.LID, :2] - np.clip(0.4 * lean[:2], -0.035, 0.035)
        yield from self._hands.move(L.LEFT, self._in_box(x, y, 0.13), rotation)
        yield from self._hands.move(L.LEFT, self._in_box(x, y, L.BOX_RIM_Z + L.LID_TOP_Z + 0.006))
        yield from wait(0.1)
        yield from self._rise(L.LEFT, 0.13)

    def _align_lid(self, x: float, y: float, rotation: np.ndarray) -> Motion:
        """Pushes the block's left side; the finger follows the lid's side down from where it rests now."""
        f = self._facts
        side = self._in_lid(0.0, L.LID_BLOCK_HALF[1], L.LID_FLANGE_Z)
        high = float(max((side - f.position[L.BOX])[2], L.BOX_RIM_Z + L.LID_FLANGE_Z)) + 0.014
        start = y + L.LID_BLOCK_HALF[1] + 0.026
        yield from together(
            self._hands.move(L.LEFT, self._in_box(x, start, 0.15), rotation), self._hands.grip(L.LEFT, 0.0)
        )
        yield from self._hands.move(L.LEFT, self._in_box(x, start, high))
        end = self._in_box(x, L.LID_BLOCK_HALF[1] + 0.012, L.BOX_RIM_Z + L.LID_FLANGE_Z + 0.014)
        yield from self._hands.move(L.LEFT, end, speed=0.5)


UP = up(0.07)  # from before a grasp down to it
