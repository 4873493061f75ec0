"""One episode on one robot: observe, ask, act, record.

Shape letters: S state numbers, A action numbers, H horizon, O objects, P pose numbers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from cel_jax.bus.channels import ObservationClient, StepId
from cel_jax.bus.spool import EpisodeWriter
from cel_jax.data.episode import EpisodeHeader, Features, Observation, Source
from cel_jax.data.frame_log import Frame, encode_frame
from cel_jax.data.images import encode_jpeg
from cel_jax.robots.protocol import Robot, StaleFrame, Verdict
from cel_jax.workers.wiring import Wiring

OVERHEAD_BYTES = 512  # field names and framing of one record


class Stopped(RuntimeError):
    """The worker was told to stop in the middle of an episode; the partial episode is dropped."""


class EmergencyStopped(RuntimeError):
    """An operator's emergency stop, or a desk that is away; the partial episode is dropped."""


class Watch:
    """Who may end an episode besides the robot's own side; here nobody."""

    def moves(self) -> contextlib.AbstractContextManager[None]:
        """Around everything that moves the robot. Raises EmergencyStopped where it must stand still."""
        return contextlib.nullcontext()

    def ends(self, run: EpisodeRun) -> bool:
        """Whether the episode is over although the robot's side does not say so."""
        return False


LATE_FRAMES = 3  # so many in a row, and older than the deadline: one late frame is no fault


class FreshFrames:
    """Watches the capture times of one episode. A camera that stands still is a fault, never a repeated observation."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s, self._newest_s, self._since_s, self._late, self._step = deadline_s, -math.inf, 0.0, 0, -1

    def check(self, capture_time_s: float, step: int, robot_id: str) -> None:
        """Raises StaleFrame once the frames of LATE_FRAMES steps in a row, and of `deadline_s`, were the same."""
        now_s = time.monotonic()
        if capture_time_s > self._newest_s:
            self._newest_s, self._since_s, self._late = capture_time_s, now_s, 0
        elif step > self._step:
            self._late += 1
        self._step = step
        if self._late >= LATE_FRAMES and now_s - self._since_s > self._deadline_s:
            raise StaleFrame(
                f"robot {robot_id}: the frame of {now_s - self._since_s:.2f} s ago came {self._late} times again "
                f"(limit {self._deadline_s:g} s); check its cameras"
            )


class EpisodeRun:
    """Plays action chunks until the robot's side knows the outcome. What was executed is what is recorded."""

    def __init__(
        self, wiring: Wiring, robot: Robot, infer: ObservationClient, header: EpisodeHeader, writer: EpisodeWriter,
        watch: Watch | None = None,
    ) -> None:  # fmt: skip
        self._watch = watch or Watch()
        self._context, self._config = wiring.context, wiring.config
        self._robot, self._infer, self._header, self._writer = robot, infer, header, writer
        self._frames = FreshFrames(wiring.config.task.frame_deadline_s)
        self.steps = 0
        self.policy_version = -1

    @property
    def episode(self) -> str:
        return self._header.id

    def until_verdict(self) -> Verdict | None:
        """None where a person ended the episode. Raises Stopped, EmergencyStopped, a RobotError, or BusError when no
        action comes within the deadline."""
        while True:
            seen = self._observe(wanted=True)
            for action in self._ask(seen):
                self._act(seen, action)
                verdict = self._robot.verdict()
                if verdict is not None or self._watch.ends(self):
                    return verdict
                seen = self._observe(wanted=self.steps % self._config.task.image_stride_frames == 0)

    def _observe(self, wanted: bool) -> tuple[Observation, dict[str, bytes]]:
        """The observation and its encoded images: inference and training see the same bytes."""
        seen = self._robot.get_observation(with_images=wanted)
        self._frames.check(seen.capture_time_s, self.steps, self._robot.robot_id)
        return seen, {name: _as_jpeg(image) for name, image in seen.images.items()}

    def _ask(self, seen: tuple[Observation, Mapping[str, bytes]]) -> np.ndarray:
        """float32 [execute_frames, A], absolute."""
        if self._context.should_stop():
            raise Stopped(self._header.id)
        self._context.progress()
        step = StepId(self._header.station, self._header.worker, self._header.id, self.steps)
        arrays = observation_arrays(*seen)
        reply = self._infer.infer(step, self._header.prompt, arrays, self._config.bus.reply_deadline_s)
        self.policy_version = reply.policy_version
        return np.asarray(reply.arrays["actions"])[: self._config.policy.execute_frames]

    def _act(self, seen: tuple[Observation, Mapping[str, bytes]], action: np.ndarray) -> None:
        observation, jpegs = seen
        stage = self._robot.stage()
        with self._watch.moves():
            executed = self._robot.send_action(action)
        frame = Frame(
            self.steps, observation.state, executed, dict(jpegs), observation.objects, observation.capture_time_s,
            self.policy_version, int(Source.POLICY), False, stage,
        )  # fmt: skip
        self._writer.append(encode_frame(frame))
        self.steps += 1


def _as_jpeg(image: np.ndarray) -> bytes:
    """Encodes pixels; a camera that gives JPEG streams (uint8 [bytes]) is taken as it is."""
    return image.tobytes() if image.ndim == 1 else encode_jpeg(image)


def observation_arrays(seen: Observation, jpegs: Mapping[str, bytes]) -> dict[str, Any]:
    """state float32 [S]; objects float32 [O, P] or absent; images camera -> JPEG, or absent."""
    arrays: dict[str, Any] = {"state": np.asarray(seen.state, np.float32)}
    if seen.objects is not None:
        arrays["objects"] = np.asarray(seen.objects, np.float32)
    if jpegs:
        arrays["images"] = dict(jpegs)
    return arrays


def frame_bytes(features: Features, image_stride_frames: int) -> int:
    """Upper bound of one recorded frame: a JPEG is never larger than its raw image and its headers."""
    objects = 0 if features.objects_shape is None else int(np.prod(features.objects_shape))
    numbers = 4 * (features.state_dim + features.action_dim + objects)
    pixels = sum(3 * camera.height * camera.width + 1024 for camera in features.cameras)
    return OVERHEAD_BYTES + numbers + -(-pixels // image_stride_frames)
