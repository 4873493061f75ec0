"""What every action passes before it reaches a robot: numbers, joint, velocity and step limits, workspace bounds.

A number that is not finite is refused (an error: the policy is broken). Everything else is clipped; what is returned is
what may be executed. An arm whose commanded tip would leave the workspace holds its last command.
Shape letters: A action numbers, G arms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from cel_jax.robots.protocol import RobotError


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Box that the gripper tips may not leave, metres, in the robot's base frame."""

    low_m: tuple[float, float, float]
    high_m: tuple[float, float, float]

    def holds(self, tip_m: np.ndarray) -> bool:
        """Whether a tip [3] is inside."""
        return all(a <= x <= b for a, x, b in zip(self.low_m, tip_m.tolist(), self.high_m, strict=True))


@dataclasses.dataclass(frozen=True)
class SafetyLimits:
    """Limits of one robot's action [A]. Units per entry: radians for joints, 0..1 for grippers.

    low, high: position limits. max_velocity: per second. max_step: largest change in one control period, whatever the
    period (a guard against a late or doubled command). arms: for each of G arms the slice of A that moves its tip.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    max_velocity: tuple[float, ...]
    max_step: tuple[float, ...]
    arms: tuple[slice, ...] = ()
    workspace: Workspace | None = None


class ActionGuard:
    """Applies `SafetyLimits` to a stream of actions. `tips(action [A]) -> [G, 3]` is needed for the workspace."""

    def __init__(
        self,
        limits: SafetyLimits,
        period_s: float,
        robot_id: str,
        tips: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        if limits.workspace is not None and tips is None:
            raise ValueError(f"robot {robot_id}: workspace bounds need a function that gives the tips of an action")
        self._limits, self._robot_id, self._tips = limits, robot_id, tips
        self._low, self._high = np.array(limits.low), np.array(limits.high)
        self._step = np.minimum(np.array(limits.max_velocity) * period_s, np.array(limits.max_step))
        self._last: np.ndarray | None = None
        self.clipped_actions = 0
        self.held_actions = 0

    def reset(self, command: np.ndarray) -> None:
        """Starts from the command [A] that the robot holds now."""
        self._last = np.array(command, np.float64)

    def check(self, action: np.ndarray) -> np.ndarray:
        """float32 [A]: what may be executed. Raises `RobotError` on a wrong shape or a number that is not finite."""
        wanted = self._valid(action)
        if self._last is None:
            raise RobotError(f"robot {self._robot_id}: action before reset; call reset(seed) first")
        allowed = np.clip(wanted, self._last - self._step, self._last + self._step)
        allowed = np.clip(allowed, self._low, self._high)
        self.clipped_actions += int(np.abs(allowed - wanted).max() > 1e-6)
        allowed = self._inside(allowed).astype(np.float32)
        self._last = allowed.astype(np.float64)
        return allowed

    def _valid(self, action: np.ndarray) -> np.ndarray:
        wanted = np.asarray(action, np.float64)
        if wanted.shape != self._low.shape:
            raise RobotError(
                f"robot {self._robot_id}: expected an action of shape {self._low.shape}, got {wanted.shape}"
            )
        bad = np.flatnonzero(~np.isfinite(wanted))
        if bad.size:
            raise RobotError(
                f"robot {self._robot_id}: action entries {bad.tolist()} are not finite; nothing was sent. "
                "Check the policy's output and the normalisation statistics"
            )
        return wanted

    def _inside(self, allowed: np.ndarray) -> np.ndarray:
        if self._limits.workspace is None or self._tips is None or self._last is None:
            return allowed
        for tip, span in zip(self._tips(allowed), self._limits.arms, strict=True):
            if not self._limits.workspace.holds(tip):
                allowed[span] = self._last[span]
                self.held_actions += 1
        return allowed
