"""The packing table in simulated physics: scripted arms carry out each skill, and its end is read from the poses.

Nothing is assumed: a part is held while both fingers touch it, packed while it lies between the box's walls. The same
(task, initial state, attempt) gives the same motions; attempts differ by the noise of grasps and placements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cel_jax.planner.advantages import stable_hash
from cel_jax.planner.tabletop.packing import SIDES, PackingTable
from cel_jax.planner.tabletop.physical_motions import TableWork
from cel_jax.planner.tabletop.physical_rig import Rig, box_turned, place_of, pose_of, side_of
from cel_jax.robots.sim import layout as L


class PhysicalTabletop(PackingTable):
    """See `interface.Tabletop`. rig: the simulation, for tests that meddle with it."""

    def __init__(self) -> None:
        self.rig = Rig()

    def reset(self, task: str, initial_state: int, attempt: int) -> None:
        """As `PackingTable.reset`; then the simulation is set up and has settled."""
        super().reset(task, initial_state, attempt)
        places = np.random.default_rng([3, stable_hash(task), initial_state])
        self._work = TableWork(self.rig, self.rig.reset(self.parts, self.turned, places), self._luck)
        self._read()

    def _read(self) -> None:
        """Takes over what the simulation shows."""
        facts = self.rig.read()
        self.turned = box_turned(facts)
        for name, part in self.parts.items():
            part.place = place_of(facts, name)
            if part.place == "table":
                part.side, part.pose = side_of(facts, name), pose_of(facts, name)
        self.held = next((name for name, part in self.parts.items() if part.place == "held"), None)

    def describe(self) -> str:
        """The scene as the camera would tell it."""
        self._read()
        return super().describe()

    def act(self, name: str, arguments: Mapping[str, Any]) -> str:
        """See `PackingTable.act`. Whatever falls off the table, the trial is lost."""
        self._read()
        text = super().act(name, arguments)
        self._read()
        fallen = [part for part in self.parts if self.parts[part].place == "floor"]
        return self._dropped(fallen[0]) if fallen and not self.finished else text

    def _grasp(self, part: str, arm: str, grasp: str) -> str:
        thing, hand = L.OBJECTS.index(part), SIDES.index(arm)
        self.rig.play(self._work.grasp(hand, part, grasp))
        met = bool(self.rig.facts.touched[hand, thing])
        self.rig.play(self._work.lift(hand))
        if self.rig.facts.held[hand, thing]:
            return self._holds(part, arm)
        self.rig.play(self._work.let_go(hand))
        if place_of(self.rig.facts, part) == "floor":
            return self._knocked_off(part)
        return self._slipped(part) if met else f"The {arm} arm missed the {part}."

    def _lay(self, part: str, spot: str) -> str:
        refusal = self._refusal(part, spot)
        if refusal:
            return refusal
        hand = int(np.flatnonzero(self.rig.facts.held[:, L.OBJECTS.index(part)])[0])
        self.rig.play(self._work.place(hand, part, spot))
        self._read()
        place, wanted = self.parts[part].place, "tray" if spot == "tray" else "box"
        if place == "floor":
            return self._dropped(part)
        return self._put(part, wanted) if place == wanted else f"The {part} missed its place."

    def _turn_box(self) -> str:
        self.rig.play(self._work.straighten())
        self._read()
        return "The box is still turned." if self.turned else "The box is straight."
