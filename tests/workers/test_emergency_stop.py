"""An emergency stop while the worker waits for actions, or while its robot resets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cel_jax.bus.channels import ActionReply, StepId
from cel_jax.bus.spool import Spool
from cel_jax.console.desk import Orders, StationLink
from cel_jax.workers import labelling
from cel_jax.workers.episode import EmergencyStopped, EpisodeRun
from cel_jax.workers.labelling import OperatorLabels
from cel_jax.workers.wiring import Wiring
from tests.workers import conftest as workers
from tests.workers.conftest import make_header
from tests.workers.test_episode import ToyRobot, Writer


class SlowInfer:
    """In its second answer the operator stops the robot and releases it again."""

    def __init__(self, link: StationLink) -> None:
        self._link, self.asked = link, 0

    def infer(self, id: StepId, task: str, arrays: dict, deadline_s: float) -> ActionReply:
        self.asked += 1
        if self.asked == 2:
            self._link._take(Orders(stop=True))
            self._link._take(Orders(stop=False))
        return ActionReply(id, 1, {"actions": np.zeros((6, 3), np.float32)})


class Context(workers.Context):
    """Notes that the worker would have ended."""

    gone = ""

    def paused(self) -> bool:
        return False

    def give_up(self, reason: str) -> None:
        self.gone = reason


@pytest.fixture
def labels(wiring: Wiring, tmp_path: Path) -> OperatorLabels:
    wiring = dataclasses.replace(wiring, context=Context(tmp_path, wiring.context.identity))  # type: ignore[arg-type]
    made = OperatorLabels(wiring, ToyRobot(), Spool(tmp_path / "spool", "w"), None)  # type: ignore[arg-type]
    made.link = StationLink(None, made.report, made.take, 60.0, made.halt)  # type: ignore[arg-type]
    return made


def test_a_stopped_episode_never_goes_on_after_the_release(wiring: Wiring, labels: OperatorLabels) -> None:
    robot, (header, _) = ToyRobot(), make_header("e1")
    labels.begin(header.id)
    run = EpisodeRun(wiring, robot, SlowInfer(labels.link), header, Writer(), labels)  # type: ignore[arg-type]
    with pytest.raises(EmergencyStopped):
        run.until_verdict()
    assert robot.steps == 4, "no command after the stop"


def test_a_start_that_was_taken_before_a_stop_is_void_after_the_release(labels: OperatorLabels) -> None:
    labels._turn = lambda: None  # type: ignore[method-assign]
    labels.link.orders = Orders(start="one")
    assert labels.wait_for_start()
    labels.link._take(Orders(stop=True))
    labels.link._take(Orders())
    with pytest.raises(EmergencyStopped), labels.moves():
        pytest.fail("it moved")
    labels.link.orders = Orders(start="two")
    assert labels.wait_for_start()
    with labels.moves():
        pass  # the next start counts


def test_a_call_that_outlasts_the_stop_ends_the_worker(labels: OperatorLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    context: Context = labels._context  # type: ignore[assignment]
    with labels.moves():
        labels.link._take(Orders(stop=True))
        assert not labels.report().stopped and not context.gone, "it has its time to let go"
        monkeypatch.setattr(labelling, "STOP_LIMIT_S", 0.0)
        labels.report()
        assert "emergency stop" in context.gone
    context.gone = ""
    assert labels.report().stopped and not context.gone, "whoever let go goes on"
