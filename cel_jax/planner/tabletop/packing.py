"""The packing table as a planner meets it: parts, tasks, skills, rules and wording. How skills end is a subclass's.

Apart from the physics, so that a planner trained on one model of the table can be judged on another.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cel_jax.planner.advantages import stable_hash
from cel_jax.planner.tabletop.interface import Skill, find_skill

PARTS = ("cable", "adapter", "case", "manual", "phone")
SIDES, POSES, GRASPS = ("left", "right"), ("flat", "standing"), ("top", "side", "pinch")
SPOTS = ("bay", "ledge", "rim", "tray")
LAYER = {"cable": 0, "adapter": 0, "case": 1, "manual": 1, "phone": 2}
SPOT = {"cable": "bay", "adapter": "bay", "case": "ledge", "manual": "ledge", "phone": "rim"}
SLIPPERY = ("manual", "phone")  # must be pinched; the scene does not say so
FINISHES = {"close": "close the box with the lid", "open": "leave the box open", "tray": "put the lid on the tray"}
TURNED = 0.4  # of the initial states have a turned box


@dataclasses.dataclass
class Part:
    """Where one part is: `table`, `held`, `box`, or `tray`."""

    side: str
    pose: str
    place: str = "table"


def all_tasks() -> tuple[str, ...]:
    """Subsets of three, four and five parts, each with three ways to finish: 48 tasks."""
    subsets = [c for size in (3, 4, 5) for c in itertools.combinations(PARTS, size)]
    return tuple(f"{'+'.join(parts)}/{finish}" for parts in subsets for finish in FINISHES)


def right_grasp(part: str, pose: str) -> str:
    """How a part is held reliably."""
    return "pinch" if part in SLIPPERY else "top" if pose == "flat" else "side"


def layer_done(parts: Mapping[str, Part], part: str) -> bool:
    """Whether everything below `part` that the task packs is in the box."""
    return all(p.place == "box" for name, p in parts.items() if name != "lid" and LAYER[name] < LAYER.get(part, 9))


class PackingTable:
    """See `interface.Tabletop`. Subclasses say how a grasp, a placement and the straightening of the box end."""

    skills = (
        Skill("pick", "grasp a part with one arm", {"part": (*PARTS, "lid"), "arm": SIDES, "grasp": GRASPS}),
        Skill("place", "put the held part at a spot", {"spot": SPOTS}),
        Skill("straighten", "turn the box straight", {}),
        Skill("done", "declare the task finished", {}),
    )

    def tasks(self) -> tuple[str, ...]:
        return all_tasks()

    def reset(self, task: str, initial_state: int, attempt: int) -> None:
        """The scene depends on task and initial state, luck on the attempt too. Raises ValueError for no such task."""
        if task not in self.tasks():
            raise ValueError(f"unknown task {task!r}; for example {self.tasks()[0]!r}")
        scene = np.random.default_rng([1, stable_hash(task), initial_state])
        self._luck = np.random.default_rng([2, stable_hash(task), initial_state, attempt])
        names, self._finish = task.split("/")[0].split("+"), task.split("/")[1]
        draw = lambda: Part(str(scene.choice(SIDES)), str(scene.choice(POSES)))  # noqa: E731
        self.parts = {name: draw() for name in [*names, "lid"]}
        self.parts["lid"].pose = "flat"
        self.turned = bool(scene.random() < TURNED)
        self._order = [str(name) for name in scene.permutation(names)]
        self.held: str | None = None
        self._finished = self._success = False

    def instruction(self) -> str:
        return f"Pack the {', the '.join(self._order)} and {FINISHES[self._finish]}."

    def describe(self) -> str:
        """The scene as the camera would tell it."""
        hands = f"Holding the {self.held}." if self.held else "Hands empty."
        parts = [f"{name}: {self._where(part)}." for name, part in self.parts.items()]
        return " ".join([hands, f"Box {'turned' if self.turned else 'straight'}.", *parts])

    def _where(self, part: Part) -> str:
        return f"{part.side}, {part.pose}" if part.place == "table" else part.place

    @property
    def finish(self) -> str:
        return self._finish

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def success(self) -> bool:
        return self._success

    def act(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Runs one skill and tells what happened. Raises SkillError for a call that cannot be run."""
        if self._finished:
            return "The trial is over."
        find_skill(self.skills, name, arguments)
        run: dict[str, Callable[..., str]] = {
            "pick": self._pick, "place": self._place, "straighten": self._straighten, "done": self._done,
        }  # fmt: skip
        return run[name](**arguments)

    def _pick(self, part: str, arm: str, grasp: str) -> str:
        if self.held:
            return f"The hands are full with the {self.held}."
        if part not in self.parts or self.parts[part].place != "table":
            return f"There is no {part} on the table."
        if self.parts[part].side != arm:
            return f"The {arm} arm cannot reach the {part}."
        return self._grasp(part, arm, grasp)

    def _grasp(self, part: str, arm: str, grasp: str) -> str:
        raise NotImplementedError

    def _holds(self, part: str, arm: str) -> str:
        self.held, self.parts[part].place = part, "held"
        return f"The {arm} arm holds the {part}."

    def _slipped(self, part: str) -> str:
        return f"The {part} slipped out of the grasp."

    def _knocked_off(self, part: str) -> str:
        return self._end(False, f"The {part} was knocked off the table.")

    def _dropped(self, part: str) -> str:
        return self._end(False, f"The {part} was dropped on the floor.")

    def _place(self, spot: str) -> str:
        if not self.held:
            return "There is nothing in the hands."
        return self._lay(self.held, spot)

    def _lay(self, part: str, spot: str) -> str:
        raise NotImplementedError

    def _refusal(self, part: str, spot: str) -> str:
        """Why the part cannot go there now; empty if it can."""
        if spot == "tray":
            return ""
        if self.turned:
            return "The box is turned, nothing fits."
        if spot != SPOT.get(part, "rim") or not layer_done(self.parts, part):
            return f"The {part} does not fit there now."
        return ""

    def _put(self, part: str, place: str) -> str:
        self.held = None
        self.parts[part].place = place
        return f"The {part} is in its place." if place == "box" else f"The {part} is on the tray."

    def _straighten(self) -> str:
        if self.held:
            return f"The hands are full with the {self.held}."
        return self._turn_box()

    def _turn_box(self) -> str:
        raise NotImplementedError

    def _done(self) -> str:
        packed = all(part.place == "box" for name, part in self.parts.items() if name != "lid")
        lid = {"close": "box", "open": "table", "tray": "tray"}[self._finish]
        good = packed and self.parts["lid"].place == lid
        return self._end(good, "The task is done." if good else "The task is not done.")

    def _end(self, success: bool, text: str) -> str:
        self._finished, self._success = True, success
        return text
