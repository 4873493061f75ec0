"""The stage-wise model of the paper's appendix (equations (24)-(29)): a task of T stages in a row, each passed with its
own probability; float64.

Shape letters: T stages.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class StageModel:
    """theta: float64 [T], the logit of passing each stage; the policy's parameters."""

    theta: np.ndarray

    @property
    def stages(self) -> int:
        return len(self.theta)

    @property
    def fail(self) -> np.ndarray:
        """phi [T]: the probability of failing at a stage that was reached."""
        return 1.0 / (1.0 + np.exp(self.theta))

    @property
    def success(self) -> float:
        """Equation (24): J, the product of all passes."""
        return float(np.prod(1.0 - self.fail))

    @property
    def gradient(self) -> np.ndarray:
        """v = grad J [T]: J phi."""
        return self.success * self.fail

    @property
    def alignment(self) -> np.ndarray:
        """Equation (27): u [T], the gradient's product with the score of a successful chunk of each stage: J phi^2."""
        return self.success * self.fail**2

    def direction(self, emphasis: np.ndarray) -> np.ndarray:
        """Equation (14): the mean score [T] of successful chunks, one a stage, weighted by `emphasis` of mean one."""
        return emphasis * self.fail / self.stages

    @property
    def mu(self) -> float:
        """Equation (15): the mean alignment."""
        return float(self.alignment.mean())

    def kappa(self, emphasis: np.ndarray) -> float:
        """Equation (15): the covariance of emphasis and alignment."""
        return float(np.mean((emphasis - emphasis.mean()) * (self.alignment - self.mu)))

    def moved(self, step: np.ndarray) -> StageModel:
        return StageModel(self.theta + step)

    def hessian(self) -> np.ndarray:
        """[T, T] of J."""
        fail, success = self.fail, self.success
        return success * (np.outer(fail, fail) - np.diag(fail * (1.0 - fail)))

    def run(self, episodes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(the stage at which each episode failed, T for success, int [n]; the sum of scores of its path [n, T])."""
        passed = rng.random((episodes, self.stages)) >= self.fail
        end = np.where(passed.all(axis=1), self.stages, np.argmin(passed, axis=1))
        reached = np.arange(self.stages) <= end[:, None]
        score = np.where(passed, self.fail, self.fail - 1.0)
        return end, np.where(reached, score, 0.0)
