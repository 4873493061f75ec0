"""The scripted demonstrator of Phone Packaging: closed loop on the true simulator state, retries missed grasps.

    expert = Expert(world, operator("ada"), seed)
    while world.verdict() is None:
        world.step(expert.act())

It reads the referee's step, so that it can also take over in the middle of a trial (an intervention).
"""

from __future__ import annotations

import numpy as np

from cel_jax.robots.sim.driver import Driver
from cel_jax.robots.sim.expert_steps import Steps
from cel_jax.robots.sim.motions import Motion, wait
from cel_jax.robots.sim.styles import OperatorStyle
from cel_jax.robots.sim.world import PackagingWorld

SETTLE_STEPS = 8
PAUSE_MIN_S, PAUSE_MEAN_S, PAUSE_MAX_S = 0.3, 0.8, 2.5


class Expert:
    """One demonstrator at one world, for one trial (or from the present moment of one)."""

    def __init__(self, world: PackagingWorld, style: OperatorStyle, seed: int) -> None:
        self._world, self._style = world, style
        self._rng = np.random.default_rng([0xE8E8, abs(int(seed)), int(seed < 0)])
        self._driver = Driver(world.physics, world.kinematics, style.speed)
        self._steps = Steps(world, self._driver.hands, style, self._rng)
        self._motion = self._run()

    @property
    def deliberate_error(self) -> bool:
        """True while a missed grasp is being shown on purpose: such frames carry no loss."""
        return self._steps.deliberate_error

    def act(self) -> np.ndarray:
        """float32 [16]: the next absolute targets, in the robot's encoder units."""
        next(self._motion)
        return self._driver.action()

    def _run(self) -> Motion:
        """The step being worked on, again and again; never ends."""
        last = -1
        while True:
            stage = self._world.stage()
            if stage != last and last >= 0:
                yield from self._hesitate()
            last = stage
            yield from self._steps.motion(stage)
            yield from self._settle(stage)

    def _settle(self, stage: int) -> Motion:
        """Gives the referee time to see that the step is done before it is tried again."""
        for _ in range(SETTLE_STEPS):
            yield
            if self._world.stage() != stage:
                return

    def _hesitate(self) -> Motion:
        if self._rng.random() < self._style.pause_probability:
            extra = self._rng.geometric(1.0 / (30.0 * (PAUSE_MEAN_S - PAUSE_MIN_S))) / 30.0
            yield from wait(min(PAUSE_MAX_S, PAUSE_MIN_S + extra))
