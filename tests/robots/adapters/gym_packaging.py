"""The simulated robot as a stranger would publish it: a gymnasium environment, and the function that plugs it in."""

from __future__ import annotations

import gymnasium
import numpy as np

from cel_jax.data.episode import Outcome
from cel_jax.robots.adapters.gymnasium_env import GymnasiumRobot
from cel_jax.robots.adapters.mapping import ObservationMap
from cel_jax.robots.tasks import make_world

VIEW = ObservationMap(state=("agent.joints",), objects="objects")


class PackagingEnv(gymnasium.Env):
    """Phone packaging with object poses; rewards nothing, says `is_success`."""

    metadata = {"render_fps": 30}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, number: int) -> None:
        self._world = make_world("phone_packaging", robot_seed=number, no_progress_s=6.0, max_episode_s=60.0)
        features = self._world.features
        assert features.objects_shape is not None
        self.action_space = gymnasium.spaces.Box(-7.0, 7.0, (features.action_dim,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            agent=gymnasium.spaces.Dict(joints=gymnasium.spaces.Box(-10, 10, (features.state_dim,), np.float32)),
            objects=gymnasium.spaces.Box(-10, 10, features.objects_shape, np.float32),
        )
        self.delta = features.delta_mask

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._world.reset(seed or 0)
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self._world.step(action)
        verdict = self._world.verdict()
        won = verdict is not None and verdict.outcome is Outcome.SUCCESS
        return self._seen(), 0.0, verdict is not None, False, {"is_success": won}

    def _seen(self) -> dict:
        seen = self._world.observe(with_images=False)
        assert seen.objects is not None
        return {"agent": {"joints": np.asarray(seen.state, np.float32)}, "objects": seen.objects.astype(np.float32)}


def make(number: int) -> GymnasiumRobot:
    env = PackagingEnv(number)
    return GymnasiumRobot(env, f"gym-{number}", VIEW, delta=env.delta)


def make_one_joint_short(number: int) -> GymnasiumRobot:
    """A mistake in the map: the policy was made for more."""
    return GymnasiumRobot(PackagingEnv(number), f"gym-{number}", ObservationMap(state=("objects",), objects="objects"))
