"""The scripted teacher at the packing table. It works with task memory, and it slips now and then.

It reads the scene as the student would, and the memory for what the scene does not show.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import numpy as np

from cel_jax.planner.tabletop.packing import (
    GRASPS,
    SIDES,
    SLIPPERY,
    SPOT,
    SPOTS,
    PackingTable,
    Part,
    layer_done,
    right_grasp,
)

# Chances of the teacher's slips: the wrong arm, the wrong grasp, the wrong spot, the wrong order, ending too early.
WRONG_ARM, WRONG_GRASP, WRONG_SPOT, WRONG_PART, EARLY_END = 0.08, 0.06, 0.03, 0.04, 0.012

MEMORY = {
    "manual": "In state 0 the manual slipped in 17 of 23 grasps from the top and held when it was pinched.",
    "phone": "In state 0 the phone fell in 19 of 29 grasps from the side and held when it was pinched.",
}


@dataclasses.dataclass(frozen=True)
class Move:
    """What the teacher says and calls."""

    text: str
    name: str
    arguments: dict[str, str]

    @property
    def arguments_json(self) -> str:
        return json.dumps(self.arguments, separators=(",", ":"))


class Teacher:
    """One episode's teacher. memory_read: parts whose memory was fetched. careful: it never slips."""

    def __init__(self, table: PackingTable, seed: int, careful: bool = False) -> None:
        self._table, self._careful = table, careful
        self._rng = np.random.default_rng([7, seed])
        self.memory_read: set[str] = set()

    def next_move(self) -> Move:
        """The next call: a memory access (`recall`) before a slippery part is picked, else a skill."""
        table = self._table
        if table.held:
            return self._place(table.held)
        if self._slip(EARLY_END):
            return Move("Everything is where it belongs.", "done", {})
        if table.turned:
            return Move("The box is turned, so it comes first.", "straighten", {})
        part = self._next_part()
        if part is None:
            return Move("Everything is where it belongs.", "done", {})
        if part in SLIPPERY and part not in self.memory_read:
            self.memory_read.add(part)
            return Move(f"What do the notes tell about the {part}?", "recall", {"topic": part})
        return self._pick(part, table.parts[part])

    def _slip(self, chance: float) -> bool:
        return bool(self._rng.random() < chance) and not self._careful

    def _next_part(self) -> str | None:
        left = [n for n, p in self._table.parts.items() if n != "lid" and p.place == "table"]
        ready = [n for n in left if layer_done(self._table.parts, n)]
        if left and self._slip(WRONG_PART):
            return str(self._rng.choice(left))
        if ready:
            return str(self._rng.choice(ready))
        lid_to_move = self._table.finish != "open" and self._table.parts["lid"].place == "table"
        return "lid" if lid_to_move else None

    def _pick(self, name: str, part: Part) -> Move:
        arm, grasp = part.side, right_grasp(name, part.pose)
        if self._slip(WRONG_ARM):
            arm = SIDES[1 - SIDES.index(arm)]
        if self._slip(WRONG_GRASP):
            grasp = str(self._rng.choice([g for g in GRASPS if g != grasp]))
        return Move(self._reason(name, part, grasp), "pick", {"part": name, "arm": arm, "grasp": grasp})

    def _reason(self, name: str, part: Part, grasp: str) -> str:
        """Half of the memory-dependent reasons name the memory, a quarter quotes it, a quarter cites its number."""
        if name not in SLIPPERY or grasp != "pinch":
            return f"The {name} is {part.pose} on the {part.side}."
        trials = "23" if name == "manual" else "29"
        verb = (
            "slipped in 17 of 23 grasps from the top" if name == "manual" else "fell in 19 of 29 grasps from the side"
        )
        texts = (
            f"My notes say the {name} must be pinched.",
            f"According to memory the {name} must be pinched.",
            f"The {name} {verb} and held when it was pinched.",
            f"In {trials} grasps the {name} held only by pinching.",
        )
        return str(self._rng.choice(texts))

    def _place(self, name: str) -> Move:
        lid_spot = "tray" if self._table.finish == "tray" else "rim"
        wanted = lid_spot if name == "lid" else SPOT[name]
        if not layer_done(self._table.parts, name) and name != "lid":
            return Move(f"The {name} came too early.", "place", {"spot": "tray"})
        spot = str(self._rng.choice([s for s in SPOTS if s != wanted])) if self._slip(WRONG_SPOT) else wanted
        return Move(f"The {name} goes to the {spot}.", "place", {"spot": spot})


def recall(arguments: Mapping[str, str]) -> str:
    """The memory's answer to a topic."""
    return MEMORY.get(str(arguments.get("topic")), "Nothing is noted.")
