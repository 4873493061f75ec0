"""One simulated robot inside a worker process: runs a trial chunk by chunk, or under a driver from start to end.

Shape letters: F frames of a chunk that are executed, A action numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from cel_jax.data.episode import EpisodeHeader, Label, Observation, Outcome, Source
from cel_jax.data.images import decode_jpeg, encode_jpeg
from cel_jax.evaluation.recorder import Recorder
from cel_jax.evaluation.trials import MakeDriver, MakeRobot, RolloutOptions, Trial, TrialResult
from cel_jax.robots.protocol import Robot, Verdict


class Slot:
    """Keeps its robot from trial to trial as long as the trials name the same one."""

    def __init__(self, make_robot: MakeRobot, options: RolloutOptions, worker: str) -> None:
        self._make_robot, self._options, self._worker = make_robot, options, worker
        self._robot: Robot | None = None
        self._robot_seed: int | None = None

    def start(self, trial: Trial) -> None:
        """Makes the trial's scene; whatever ran before is dropped."""
        robot = self._robot_for(trial.robot_seed)
        robot.reset(trial.seed)
        self._trial, self._steps, self._start_s = trial, 0, time.time()
        self._recorder = Recorder() if self._options.record else None

    def _robot_for(self, robot_seed: int) -> Robot:
        if self._robot is None or self._robot_seed != robot_seed:
            self.close()
            self._robot = self._make_robot(robot_seed)
            self._robot.connect()
            self._robot_seed = robot_seed
        return self._robot

    @property
    def robot(self) -> Robot:
        if self._robot is None:
            raise RuntimeError("slot used before start(trial)")
        return self._robot

    @property
    def steps(self) -> int:
        return self._steps

    def observe(self) -> Observation:
        """What the policy shall see now; recorded as the next frame's observation."""
        observation = self.robot.get_observation(with_images=True)
        jpegs = self._encode(observation.images)
        self._record(observation, jpegs)
        if not jpegs:
            return observation
        images = {camera: decode_jpeg(data, str(self._trial), camera, self._steps) for camera, data in jpegs.items()}
        return Observation(images, observation.state, observation.objects, observation.capture_time_s)

    def _encode(self, images: Mapping[str, np.ndarray]) -> dict[str, bytes]:
        quality = self._options.jpeg_quality
        return {camera: encode_jpeg(image, quality) for camera, image in images.items()} if quality else {}

    def _record(self, observation: Observation, jpegs: Mapping[str, bytes]) -> None:
        if self._recorder is not None:
            self._recorder.observed(observation, jpegs, self.robot.stage())

    def execute(self, chunk: np.ndarray, policy_version: int) -> TrialResult | None:
        """Executes [F, A] after an `observe`; the result once the trial has ended, else None."""
        for frame, action in enumerate(chunk):
            if frame:
                self._observe_between()
            verdict = self._step(action, policy_version, Source.POLICY)
            if verdict is not None:
                return self._result(verdict)
        return None

    def _observe_between(self) -> None:
        """Frames within a chunk are looked at only for the record."""
        if self._recorder is not None:
            observation = self.robot.get_observation(with_images=self._steps % self._options.image_stride_frames == 0)
            self._record(observation, self._encode(observation.images))

    def _step(self, action: np.ndarray, policy_version: int, source: Source) -> Verdict | None:
        executed = self.robot.send_action(action)
        self._steps += 1
        if self._recorder is not None:
            self._recorder.acted(executed, policy_version, source)
        verdict = self.robot.verdict()
        if verdict is None and self._steps >= self._options.max_steps:
            return Verdict(Outcome.FAILURE, f"no verdict within {self._options.max_steps} steps")
        return verdict

    def demonstrate(self, make_driver: MakeDriver) -> TrialResult:
        """Runs the started trial under a driver to its end; policy version -1."""
        driver = make_driver(self.robot, self._trial)
        mask: list[bool] = []
        verdict = None
        while verdict is None:
            self._observe_between()
            action = driver.act()
            mask.append(not driver.deliberate_error)
            verdict = self._step(action, -1, Source.SCRIPT)
        return self._result(verdict, np.array(mask, bool))

    def _result(self, verdict: Verdict, loss_mask: np.ndarray | None = None) -> TrialResult:
        robot, stage = self.robot, self.robot.stage()
        episode = None
        if self._recorder is not None:
            label = Label(verdict.outcome, "simulator", time.time(), verdict.reason)
            episode = self._recorder.episode(self._header(), label)
        return TrialResult(
            self._trial, robot.robot_id, verdict.outcome, verdict.reason, self._steps, stage, episode, loss_mask
        )

    def _header(self) -> EpisodeHeader:
        robot, options = self.robot, self._options
        return EpisodeHeader(
            id=f"{options.episode_prefix}-{robot.robot_id}-{self._trial.seed}",
            station=f"sim-{self._trial.robot_seed}",
            worker=self._worker,
            robot_id=robot.robot_id,
            calibration_hash=robot.calibration_hash,
            task=options.task,
            prompt=options.prompt,
            fps_hz=robot.features.fps_hz,
            start_time_s=self._start_s,
        )

    def close(self) -> None:
        """Stops the robot, if there is one."""
        if self._robot is not None:
            self._robot.disconnect()
        self._robot = None
