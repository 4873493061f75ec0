"""Made-up moments for the rules: a scene as the referee sees it, without a simulator."""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.robots.sim.facts import Facts

TICK_S = 1.0 / 30.0


def start_facts() -> Facts:
    """The nominal scene before the first step; both grippers half open at the sides."""
    position = np.array([
        [0.45, -0.315, 0.034], [0.29, -0.20, 0.035], [0.32, -0.36, 0.024], [0.31, 0.27, 0.072],
        [0.46, 0.141, 0.102], [0.46, 0.141, 0.081], [0.46, 0.0, 0.0],
    ])  # fmt: skip
    nothing = np.zeros((2, 7), bool)
    return Facts(
        time_s=0.0, position=position, rotation=np.tile(np.eye(3), (7, 1, 1)), speed=np.zeros(7), held=nothing,
        touched=nothing.copy(), tip=np.array([[0.33, 0.3, 0.15], [0.33, -0.3, 0.15]]), opening=np.array([0.07, 0.07]),
    )  # fmt: skip


class Story:
    """A scene that a test changes step by step, showing each moment to a referee."""

    def __init__(self, referee) -> None:  # type: ignore[no-untyped-def]
        self.referee, self.facts = referee, start_facts()
        self.show(2)

    def show(self, ticks: int = 6):  # type: ignore[no-untyped-def]
        """Shows the present scene for some control periods; returns the verdict so far."""
        for _ in range(ticks):
            self.facts = dataclasses.replace(self.facts, time_s=self.facts.time_s + TICK_S)
            self.referee.update(self.facts)
        return self.referee.verdict

    def put(self, thing: int, x: float, y: float, z: float, rotation: np.ndarray | None = None) -> None:
        """Moves an object (world frame)."""
        position, turned = self.facts.position.copy(), self.facts.rotation.copy()
        position[thing] = (x, y, z)
        turned[thing] = np.eye(3) if rotation is None else rotation
        self.facts = dataclasses.replace(self.facts, position=position, rotation=turned)

    def hold(self, arm: int, *things: int) -> None:
        """The arm's gripper holds exactly these."""
        held = self.facts.held.copy()
        held[arm] = False
        held[arm, list(things)] = True
        self.facts = dataclasses.replace(self.facts, held=held, touched=held)

    def hand(self, arm: int, x: float, y: float, z: float, opening: float) -> None:
        """Moves a gripper."""
        tip, openings = self.facts.tip.copy(), self.facts.opening.copy()
        tip[arm], openings[arm] = (x, y, z), opening
        self.facts = dataclasses.replace(self.facts, tip=tip, opening=openings)

    def carry(self, arm: int, thing: int, x: float, y: float, z: float) -> None:
        """Takes an object, brings it somewhere and lets it go."""
        self.hold(arm, thing)
        self.show(4)
        self.put(thing, x, y, z)
        self.show(2)
        self.hold(arm)
        self.show(6)
