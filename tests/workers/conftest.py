"""A worker's surroundings without an agent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cel_jax.bus.identity import Identity
from cel_jax.config import RunConfig, TaskConfig
from cel_jax.data.episode import EpisodeHeader, Features, Label, Outcome, Source
from cel_jax.data.frame_log import Frame
from cel_jax.workers.wiring import Wiring

FEATURES = Features("toy", 3, 3, (), (2, 4), 30.0, (True, True, False))


class Context:
    """The part of a WorkerContext that workers use, recording what is reported."""

    def __init__(self, run_dir: Path, identity: Identity) -> None:
        self.run_dir, self.identity, self.robot = run_dir, identity, 0
        self.reports: list[tuple[str, str]] = []
        self.stopping = False

    def report(self, kind: str, detail: str) -> None:
        self.reports.append((kind, detail))

    def progress(self, note: str = "") -> None:
        pass

    def should_stop(self) -> bool:
        return self.stopping


@pytest.fixture
def wiring(tmp_path: Path) -> Wiring:
    config = RunConfig(task=TaskConfig(mode="state", image_stride_frames=1))
    config.policy.action_horizon, config.policy.execute_frames = 6, 4
    config.replay.table = "memory"
    identity = Identity("store-0", "store-0-1-abcd", "store")
    return Wiring(Context(tmp_path, identity), tmp_path, config)  # type: ignore[arg-type]


def make_header(name: str, outcome: Outcome = Outcome.SUCCESS) -> tuple[EpisodeHeader, Label]:
    header = EpisodeHeader(name, "robot-00", "robot-00-1-ab", "toy-1", "0" * 16, "phone_packaging", "Toy.", 30.0, 1.0)
    return header, Label(outcome, "test", 2.0)


def make_frames(count: int, seed: int = 0, source: Source = Source.POLICY) -> list[Frame]:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return [
        Frame(step, draw(3), draw(3), {}, draw(2, 4), step / 30, 7, int(source), False, -1) for step in range(count)
    ]


__all__ = ["FEATURES", "Context", "make_frames", "make_header"]
