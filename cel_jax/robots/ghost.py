"""A ghost robot: it replays recorded episodes without physics or rendering, on a clock that may run faster.

Everything around it is real (bus, spool, stores, supervisor). It keeps its own ledger, against which a run is counted.
With the stub policy every observation carries a tag (robot, number) and every action must bring its tag back: an
action made for another robot or an earlier observation is a stale action, and the ghost notes it when it is executed.

Shape letters: S state numbers, A action numbers.
"""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cel_jax.data.episode import Episode, Features, Observation
from cel_jax.robots.ghost_faults import FaultFile
from cel_jax.robots.ghost_ledger import Ledger
from cel_jax.robots.protocol import RobotError, Verdict

TAG_NUMBERS = 2  # state[0]: robot; state[1]: number of the observation
TAG_MODULUS = 1 << 20  # exact in float32
PAUSE_NOTED_S = 1.0


class GhostRobot:
    """One ghost. It plays a tape's frames at `clock_factor` times the tape's rate and ends with the tape's outcome."""

    def __init__(
        self, index: int, tapes: Sequence[Episode], features: Features, *, ledger: Ledger, clock_factor: float = 1.0,
        frames: int = 0, tagged: bool = True, faults: FaultFile | None = None,
    ) -> None:  # fmt: skip
        if not tapes:
            raise RobotError(f"ghost {index}: no recorded episodes; give --config.ghost.episodes a run's experience")
        self._index, self._tapes, self._features, self._ledger = index, list(tapes), features, ledger
        self._period_s, self._limit, self._tagged = 1.0 / (features.fps_hz * clock_factor), frames, tagged
        self._faults = faults
        self._tape, self._step, self._next_tick_s = self._tapes[0], 0, 0.0
        self._observed = secrets.randbelow(TAG_MODULUS)  # no two processes tell the same story
        self._last_act_s, self._longest_pause_s, self._acted = 0.0, 0.0, False
        self._state = np.zeros(features.state_dim, np.float32)
        self._chunk_tag, self._chunk_row = -1, 0
        self._digest, self._running, self._capture_s = hashlib.sha256(), False, 0.0

    @property
    def robot_id(self) -> str:
        return f"ghost-{self._index:03d}"

    @property
    def calibration_hash(self) -> str:
        return f"{zlib.crc32(self.robot_id.encode()):016x}"

    @property
    def features(self) -> Features:
        return self._features

    def connect(self) -> None:
        """Raises RobotError while an injected fault keeps the robot away."""
        if self._faults is not None:
            self._faults.raise_away(self.robot_id)
        self._ledger.write("connect")

    def reset(self, seed: int) -> None:
        """Takes the seed's tape to its start."""
        self._tape = self._tapes[seed % len(self._tapes)]
        self._step, self._digest, self._running = 0, hashlib.sha256(), True
        self._longest_pause_s, self._acted = 0.0, False
        self._last_act_s = time.monotonic()
        self._next_tick_s = self._last_act_s + self._period_s
        self._ledger.write("reset", tape=self._tape.header.id)

    def get_observation(self, with_images: bool = True) -> Observation:
        """The tape's frame; images as recorded, JPEG streams (uint8 [bytes]). Raises what an injected fault says."""
        self._check_running()
        if self._faults is not None:
            self._faults.raise_due(self.robot_id)
        if self._faults is None or not self._faults.is_frozen():
            self._capture_s = time.monotonic()
        self._observed = (self._observed + 1) % TAG_MODULUS
        self._state = self._tape.state[self._step].copy()
        if self._tagged:
            self._state[:TAG_NUMBERS] = self._index, self._observed
        else:  # a real policy answers: still no two episodes alike
            self._state[:TAG_NUMBERS] += np.float32(1e-3) * self._index, np.float32(1e-9) * self._observed
        objects = None if self._tape.objects is None else self._tape.objects[self._step]
        return Observation(self._images() if with_images else {}, self._state, objects, self._capture_s)

    def _images(self) -> dict[str, np.ndarray]:
        row = int(np.searchsorted(self._tape.image_steps, self._step, side="right")) - 1
        return {name: np.frombuffer(jpegs[row], np.uint8) for name, jpegs in self._tape.images.items()}

    def send_action(self, action: np.ndarray) -> np.ndarray:
        """One period; returns float32 [A]: the tape's action, which is what this robot always executes."""
        self._check_running()
        self._note_pause()
        if self._tagged:
            self._check_tag(action)
        executed = np.asarray(self._tape.action[self._step], np.float32)
        self._digest.update(self._state.tobytes() + executed.tobytes())
        self._step += 1
        time.sleep(max(0.0, self._next_tick_s - time.monotonic()))
        self._next_tick_s = max(self._next_tick_s + self._period_s, time.monotonic())
        return executed

    def _note_pause(self) -> None:
        now_s = time.monotonic()
        pause_s, self._last_act_s = now_s - self._last_act_s, now_s
        self._longest_pause_s = max(self._longest_pause_s, pause_s)
        if not self._acted:
            self._acted = True
            self._ledger.write("act")
        elif pause_s > PAUSE_NOTED_S:
            self._ledger.write("pause", seconds=round(pause_s, 3))

    def _check_tag(self, action: np.ndarray) -> None:
        """A chunk's first row must answer the last observation; its later rows follow in order."""
        robot, tag, row = int(action[0]), int(action[1]), int(action[2])
        expected = (self._index, self._observed, 0) if row == 0 else (self._index, self._chunk_tag, self._chunk_row + 1)
        if (robot, tag, row) != expected:
            self._ledger.write("stale", got=[robot, tag, row], expected=list(expected))
        self._chunk_tag, self._chunk_row = tag, row

    def verdict(self) -> Verdict | None:
        """The tape's outcome at its end."""
        length = min(self._limit or self._tape.num_frames, self._tape.num_frames)
        if not self._running or self._step < length:
            return None
        self._running = False
        label = self._tape.label
        self._ledger.write(
            "verdict", outcome=label.outcome.value, digest=self._digest.hexdigest(), frames=self._step,
            longest_pause_s=round(self._longest_pause_s, 3),
        )  # fmt: skip
        return Verdict(label.outcome, label.reason)

    def on_labelled(self, episode: str) -> None:
        """The station says that the label is durable; from here on this episode must never be lost."""
        self._ledger.write("labelled", episode=episode, digest=self._digest.hexdigest())

    def stage(self) -> int:
        return int(self._tape.stage[self._step])

    def disconnect(self) -> None:
        self._running = False
        self._ledger.write("disconnect")

    def _check_running(self) -> None:
        if not self._running:
            raise RobotError(f"robot {self.robot_id}: no episode runs; call reset() first")


def stub_actions(states: np.ndarray, horizon: int, action_dim: int) -> np.ndarray:
    """The stub policy's answer: each row carries its observation's tag. states float32 [B, S] -> [B, H, A]."""
    actions = np.zeros((len(states), horizon, action_dim), np.float32)
    actions[:, :, :TAG_NUMBERS] = states[:, None, :TAG_NUMBERS]
    actions[:, :, TAG_NUMBERS] = np.arange(horizon)
    return actions


def open_ghost(
    run_dir: Path, station: str, index: int, folder: Path, features: Features, *, clock_factor: float, frames: int,
    tagged: bool,
) -> GhostRobot:  # fmt: skip
    """A ghost of a run with its ledger (<run>/ledger), its fault file (<run>/faults) and a few of the tapes."""
    from cel_jax.robots.ghost_tapes import load_tapes

    return GhostRobot(
        index, load_tapes(folder, index), features, ledger=Ledger(run_dir / "ledger" / f"{station}.jsonl"),
        clock_factor=clock_factor, frames=frames, tagged=tagged, faults=FaultFile(run_dir / "faults" / station),
    )  # fmt: skip
