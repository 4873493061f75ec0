"""One simulated robot with its task, headless: what a lock-step evaluator drives, many in one process.

world = PackagingWorld(robot_seed=7, mode="state")
world.reset(seed)
while world.verdict() is None:
    world.step(policy(world.observe()))
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.data.episode import CameraSpec, Features, Observation
from cel_jax.robots.protocol import Verdict
from cel_jax.robots.safety import ActionGuard, SafetyLimits, Workspace
from cel_jax.robots.sim import arms, scene
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.calibration import CAMERAS, CalibrationSpread, draw_calibration
from cel_jax.robots.sim.ik import ArmKinematics
from cel_jax.robots.sim.physics import ACTION_DIM, GRIPPER_INDEX, JOINT_INDEX, Physics, home_q
from cel_jax.robots.sim.placement import draw_placement
from cel_jax.robots.sim.rules import Referee, RuleParams
from cel_jax.robots.sim.sight import Sight

PERIOD_S = 1.0 / scene.CONTROL_HZ
OBJECT_CENTRE_M, OBJECT_SCALE_M = np.array([0.42, 0.0, 0.05]), 0.2
POSE_NUMBERS = 15
NEAR_M = 0.02  # below this distance from a gripper, offsets are seen linearly; beyond, logarithmically
START_STD_RAD = 0.02
MODES = ("images", "state")
TIPS_LOW_M, TIPS_HIGH_M = (0.05, -0.60, 0.001), (0.75, 0.60, 0.60)


@dataclasses.dataclass(frozen=True)
class TaskParams:
    """What may be set about the task: see the config's `TaskConfig`. Lengths in seconds; pose_range 0..1 (or more)."""

    image_px: int = 96
    pose_range: float = 1.0
    no_progress_s: float = 4.0
    max_episode_s: float = 45.0


class PackagingWorld:
    """Physics, rules and safety of one robot instance; about 0.5 ms per control step."""

    def __init__(
        self,
        robot_seed: int,
        mode: str = "state",
        params: TaskParams | None = None,
        spread: CalibrationSpread | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown observation mode {mode!r}; expected one of {MODES}")
        self.mode, self.params = mode, params or TaskParams()
        self.calibration = draw_calibration(robot_seed, spread)
        self.physics = Physics(self.calibration)
        self.kinematics = ArmKinematics()
        limits = RuleParams(no_progress_s=self.params.no_progress_s, max_episode_s=self.params.max_episode_s)
        self.referee = Referee(limits)
        self.guard = ActionGuard(action_limits(), PERIOD_S, self.calibration.robot_id, self._tips_of)
        self.steps = 0

    @property
    def features(self) -> Features:
        """Shapes of what this robot gives and takes."""
        px = self.params.image_px
        cameras = tuple(CameraSpec(name, px, px) for name in CAMERAS) if self.mode == "images" else ()
        objects = (len(L.OBJECTS), POSE_NUMBERS) if self.mode == "state" else None
        delta = tuple(i not in GRIPPER_INDEX for i in range(ACTION_DIM))
        return Features("sim_dual_arm", ACTION_DIM, ACTION_DIM, cameras, objects, scene.CONTROL_HZ, delta)

    def reset(self, seed: int) -> None:
        """Draws a scene from the seed (the same for every robot instance) and starts a trial."""
        rng = np.random.default_rng([0x5CE7E, abs(int(seed)), int(seed < 0)])
        placement = draw_placement(rng, self.params.pose_range)
        start = home_q() + rng.normal(0.0, START_STD_RAD, 14) * self.params.pose_range
        self.physics.reset(placement, start)
        self.guard.reset(self.physics.command)
        self.referee.reset()
        self._sight = Sight(self.physics)
        self.steps = 0
        self.facts = self._sight.look(0.0)
        self.referee.update(self.facts)

    def step(self, action: np.ndarray) -> np.ndarray:
        """One control period (1/30 s). Takes [16] targets in encoder units; returns float32 [16], what was executed."""
        executed = self.guard.check(action)
        self.physics.step(executed)
        self.steps += 1
        self.facts = self._sight.look(self.time_s)
        self.referee.update(self.facts)
        return executed

    def observe(self, with_images: bool = True) -> Observation:
        """The present observation; renders only in `images` mode and only when asked."""
        images: dict[str, np.ndarray] = {}
        if self.mode == "images" and with_images:
            images = self.render()
        objects = self.objects() if self.mode == "state" else None
        return Observation(images, self.physics.state(), objects, self.time_s)

    def open_cameras(self) -> None:
        """Opens GL. Raises `render.GLMissing` naming the packages to install where there is none."""
        from cel_jax.robots.sim.render import shared_renderer

        shared_renderer(self.physics.model, self.params.image_px)

    def render(self) -> dict[str, np.ndarray]:
        """uint8 [px, px, 3] per camera."""
        from cel_jax.robots.sim.render import shared_renderer

        p = self.physics
        renderer = shared_renderer(p.model, self.params.image_px)
        return {name: renderer.render(p.model, p.data, name) for name in CAMERAS}

    def objects(self) -> np.ndarray:
        """float32 [7, 15]: position (scaled to about one) and two columns of the rotation, in the base frame; then
        the offset from each gripper in that gripper's frame, squashed: what the wrist cameras show in `images` mode.
        """
        position, rotation = self.physics.object_poses()
        biased = position + self.calibration.object_bias_m
        seen = (biased - OBJECT_CENTRE_M) / OBJECT_SCALE_M
        columns = rotation[:, :, :2].transpose(0, 2, 1).reshape(len(L.OBJECTS), 6)
        tip, turn = self.physics.tips()
        offset = np.einsum("aji,oaj->oai", turn, biased[:, None] - tip[None])
        near = np.arcsinh(offset.reshape(len(L.OBJECTS), 6) / NEAR_M)
        return np.concatenate([seen, columns, near], axis=1).astype(np.float32)

    def verdict(self) -> Verdict | None:
        """The trial's outcome once it is known."""
        return self.referee.verdict

    def stage(self) -> int:
        """0..9, the step being worked on; 10 after success. For analysis only."""
        return self.referee.stage

    @property
    def time_s(self) -> float:
        """Robot time since the reset."""
        return self.steps * PERIOD_S

    def _tips_of(self, action: np.ndarray) -> np.ndarray:
        return self.kinematics.forward(action[JOINT_INDEX])[0]


def action_limits() -> SafetyLimits:
    """Limits of the simulated arms: radians and 0..1 for the grippers."""
    joints = np.array(arms.JOINT_RANGE_RAD)
    high = np.concatenate([joints, [1.0], joints, [1.0]])
    low = np.concatenate([-joints, [0.0], -joints, [0.0]])
    velocity = np.array([*(3.2,) * 7, 5.0] * 2)
    step = np.array([*(0.12,) * 7, 0.2] * 2)
    workspace = Workspace(TIPS_LOW_M, TIPS_HIGH_M)
    spans = (slice(0, 7), slice(8, 15))
    return SafetyLimits(tuple(low), tuple(high), tuple(velocity), tuple(step), spans, workspace)
