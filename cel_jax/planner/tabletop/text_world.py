"""A fast text model of the packing table: grasps and placements end by dice. A step costs microseconds.

It models what matters to a planner: which arm reaches a part, how it must be grasped, the order of the layers, a box
that must be straight, and mishaps that end a trial.
"""

from __future__ import annotations

from cel_jax.planner.tabletop.packing import POSES, PackingTable, right_grasp

# Chances of a grasp with the right and with the wrong grip, of a wrong grip knocking the part off, of a drop.
HOLD_RIGHT, HOLD_WRONG, KNOCK_WRONG, DROP = 0.92, 0.25, 0.20, 0.015
KNOCKED_OVER = 0.3  # a miss changes the part's pose


class TextTabletop(PackingTable):
    """See `interface.Tabletop`."""

    def _grasp(self, part: str, arm: str, grasp: str) -> str:
        right = grasp == right_grasp(part, self.parts[part].pose)
        if self._luck.random() < (HOLD_RIGHT if right else HOLD_WRONG):
            return self._holds(part, arm)
        if not right and self._luck.random() < KNOCK_WRONG:
            return self._knocked_off(part)
        if part != "lid" and self._luck.random() < KNOCKED_OVER:
            thing = self.parts[part]
            thing.pose = POSES[1 - POSES.index(thing.pose)]
        return self._slipped(part)

    def _lay(self, part: str, spot: str) -> str:
        if self._luck.random() < DROP:
            return self._dropped(part)
        return self._refusal(part, spot) or self._put(part, "tray" if spot == "tray" else "box")

    def _turn_box(self) -> str:
        self.turned = False
        return "The box is straight."
