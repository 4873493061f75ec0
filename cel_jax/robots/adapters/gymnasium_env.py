"""Any gymnasium environment as a robot of a fleet (extra `envs`).

    def make(number: int) -> Robot:
        env = gymnasium.make("gym_aloha/AlohaTransferCube-v0", obs_type="pixels_agent_pos", max_episode_steps=400)
        view = ObservationMap(state=("agent_pos",), cameras={"top": "pixels.top"}, image_px=224)
        return GymnasiumRobot(env, f"aloha-{number}", view, clip=False, success=lambda reward, info: reward == 4)

Shape letters: A action numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cel_jax.data.episode import Features, Observation, Outcome
from cel_jax.robots.adapters.mapping import ObservationMap
from cel_jax.robots.protocol import RobotError, Verdict

Success = Callable[[float, Mapping[str, Any]], bool]
WHOLE = "observation"  # the key of an observation that is no dictionary


def reported_success(reward: float, info: Mapping[str, Any]) -> bool:
    """What most environments say: `is_success` or `success` in info."""
    del reward
    return bool(info.get("is_success", info.get("success", False)))


class GymnasiumRobot:
    """One environment. Its clock counts control steps; it runs as fast as it can.

    view: an observation that is no dictionary has the key `observation`. clip: to the action space (some declare a
    smaller one than they take). fps_hz: default: the environment's `render_fps`. delta: joints among the actions.
    """

    def __init__(
        self,
        env: Any,
        robot_id: str,
        view: ObservationMap,
        *,
        success: Success = reported_success,
        clip: bool = True,
        fps_hz: float = 0.0,
        delta: tuple[bool, ...] = (),
    ) -> None:
        self._env, self._id, self._view, self._success, self._clip = env, robot_id, view, success, clip
        self._fps_hz = fps_hz or float(env.metadata.get("render_fps", 0.0))
        if not self._fps_hz > 0:
            raise RobotError(f"robot {robot_id}: the environment names no render_fps; give fps_hz")
        if len(env.action_space.shape or ()) != 1:
            raise RobotError(f"robot {robot_id}: expected a box of actions [A], got {env.action_space}")
        self._delta = delta
        self._features: Features | None = None
        self._seen: Mapping[str, Any] | None = None
        self._verdict: Verdict | None = None
        self._steps = 0

    @property
    def robot_id(self) -> str:
        return self._id

    @property
    def calibration_hash(self) -> str:
        """Of the environment's name and arguments."""
        return hashlib.sha256(str(self._env.spec).encode()).hexdigest()[:16]

    @property
    def features(self) -> Features:
        """Measured on one observation: the environment is reset where that has not happened yet."""
        if self._features is None:
            seen = self._seen if self._seen is not None else _entries(self._env.reset(seed=0)[0])
            size = self._env.action_space.shape[0]
            self._features = self._view.features(seen, self._id, _kind(self._env), size, self._fps_hz, self._delta)
        return self._features

    def connect(self) -> None:
        """A simulator is open from the start."""

    def reset(self, seed: int) -> None:
        observation, _ = self._env.reset(seed=seed % 2**31)
        self._seen, self._verdict, self._steps = _entries(observation), None, 0

    def get_observation(self, with_images: bool = True) -> Observation:
        return self._view.observation(self._running(), self._id, self._steps / self._fps_hz, with_images)

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """One step of the environment. Returns what it was given, float32 [A]."""
        self._running()
        executed = self._allowed(np.asarray(action, np.float32))
        observation, reward, terminated, truncated, info = self._env.step(executed)
        self._seen, self._steps = _entries(observation), self._steps + 1
        self._verdict = self._judge(float(reward), info, bool(terminated), bool(truncated))
        return executed

    def verdict(self) -> Verdict | None:
        return self._verdict

    def stage(self) -> int:
        return -1

    def disconnect(self) -> None:
        self._env.close()

    def _allowed(self, action: np.ndarray) -> np.ndarray:
        space = self._env.action_space
        if action.shape != space.shape or not np.isfinite(action).all():
            raise RobotError(
                f"robot {self._id}: expected {space.shape[0]} finite action numbers, got {action.tolist()}"
            )
        return np.clip(action, space.low, space.high).astype(np.float32) if self._clip else action

    def _judge(self, reward: float, info: Mapping[str, Any], terminated: bool, truncated: bool) -> Verdict | None:
        if self._success(reward, info):
            return Verdict(Outcome.SUCCESS, "")
        if terminated:
            return Verdict(Outcome.FAILURE, "the environment ended the episode")
        return Verdict(Outcome.FAILURE, "time limit") if truncated else None

    def _running(self) -> Mapping[str, Any]:
        if self._seen is None:
            raise RobotError(f"robot {self._id}: used before reset; call connect() and reset(seed) first")
        return self._seen


def _entries(observation: Any) -> Mapping[str, Any]:
    return observation if isinstance(observation, Mapping) else {WHOLE: observation}


def _kind(env: Any) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
