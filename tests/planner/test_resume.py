"""RL goes on after an interruption as if there had been none: parameters, optimiser, rounds and history."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from cel_jax.fert.manifest import CheckpointMismatch
from cel_jax.planner import policy, sites
from cel_jax.planner.records import Report
from cel_jax.planner.rl import RlRun
from cel_jax.recovery.process import wait_until
from tests.planner.small_planner import small_config, small_planner

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL_RUN = (
    "--config=planner_text", "--run=killed", "--config.harness.slots=1", "--config.rl.groups=6",
    "--config.rl.attempts=4", "--config.rl.batch_size=32", "--config.rl.rounds=3",
)  # fmt: skip


def adapter(episode: str, ended: Any) -> Report:
    """Every second attempt is rewarded: a random model succeeds at nothing, and equal groups have no gradient."""
    return Report(episode, ended.task, ended.initial_state, ended.attempt, float(ended.attempt % 2), True)


@pytest.fixture
def contrast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "adapter_of", lambda config: adapter)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RlRun:
    """Three rounds without an interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sites, "adapter_of", lambda config: adapter)
        run = RlRun(small_config(), small_planner(), tmp_path_factory.mktemp("whole"), print)
        run.run()
    return run


def same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def without_clocks(run: RlRun) -> list[Any]:
    return [
        dataclasses.replace(r, metrics={k: v for k, v in r.metrics.items() if not k.endswith("_s")})
        for r in run.history
    ]


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_run_resumed_after_a_round_ends_as_the_uninterrupted_one(
    contrast: None, whole: RlRun, tmp_path: pathlib.Path, stop_after: int
) -> None:
    RlRun(small_config(rounds=stop_after), small_planner(), tmp_path / "parts", print).run()
    resumed = RlRun(small_config(), small_planner(), tmp_path / "parts", print)
    assert resumed.next_round == stop_after
    found = resumed.run()
    assert int(whole._state.step) == 6 and (found.version, resumed.next_round) == (whole.planner().version, 3)
    same(resumed._state, whole._state)
    assert without_clocks(resumed) == without_clocks(whole)
    with pytest.raises(AssertionError):
        same(found.params, small_planner().params)


def test_a_round_that_breaks_is_collected_again_from_its_beginning(
    contrast: None, whole: RlRun, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = RlRun(small_config(), small_planner(), tmp_path / "parts", print)
    update = broken._update

    def fails_in_the_second_round(samples: Any, seed: int) -> dict[str, float]:
        found = update(samples, seed)
        if broken.next_round == 1:
            raise KeyboardInterrupt  # after the step: the weights in memory are ahead of the checkpoint
        return found

    monkeypatch.setattr(broken, "_update", fails_in_the_second_round)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    broken._store.close()
    resumed = RlRun(small_config(), small_planner(), tmp_path / "parts", print)
    assert resumed.next_round == 1
    resumed.run()
    same(resumed._state, whole._state)


def test_a_round_without_any_gradient_is_counted_too(tmp_path: pathlib.Path) -> None:
    """All attempts fail: no step is taken, and the next start does not collect the same round again."""
    RlRun(small_config(rounds=2), small_planner(), tmp_path, print).run()
    resumed = RlRun(small_config(rounds=3), small_planner(), tmp_path, print)
    assert (resumed.next_round, int(resumed._state.step), len(resumed.history)) == (2, 0, 2)
    assert resumed.history[0].counts["equal"] == 2


def test_a_checkpoint_of_another_tokenizer_or_other_settings_is_refused(tmp_path: pathlib.Path) -> None:
    RlRun(small_config(rounds=1), small_planner(), tmp_path, print).run()
    other = small_planner(words=["pick", " the", " phone", "place", "done"])
    with pytest.raises(CheckpointMismatch, match=f"this run trains '{other.model_name}'"):
        RlRun(small_config(), other, tmp_path, print)
    changed = small_config()
    changed.rl.dual_clip = 2.0
    with pytest.raises(CheckpointMismatch, match="configuration"):
        RlRun(changed, small_planner(), tmp_path, print)


def command(stage: str, runs: pathlib.Path) -> list[str]:
    return [sys.executable, "-m", f"launch.planner_{stage}", *SMALL_RUN, f"--runs={runs}"]


def finish(stage: str, runs: pathlib.Path) -> str:
    done = subprocess.run(command(stage, runs), cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def kill_in_the_second_round(runs: pathlib.Path) -> str:
    """SIGKILL once the first round's checkpoint is committed and the second round collects. What it had printed."""
    manifests = runs / "killed" / "checkpoints"
    log = runs / "killed.log"
    with open(log, "w") as out:
        child = subprocess.Popen(command("rl", runs), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        committed = lambda: bool(list(manifests.glob("[0-9]*/manifest.json")))  # noqa: E731
        wait_until(lambda: committed() or child.poll() is not None, deadline_s=600)
        assert committed() and child.poll() is None, log.read_text()[-2000:]
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    return log.read_text()


def final_checkpoint(runs: pathlib.Path) -> Any:
    """The last checkpoint's state and round counter, through the store that a resumed run uses."""
    planner = policy.load(runs / "killed" / "sft")
    config = policy_config(runs)
    run = RlRun(config, planner, runs / "killed" / "checkpoints", print)
    return run._state, run.next_round, without_clocks(run)


def policy_config(runs: pathlib.Path) -> Any:
    """The configuration of the command line above."""
    from configs.planner_text import get_config

    config = get_config()
    config.name = "killed"
    for option in SMALL_RUN[2:]:
        path, value = option.removeprefix("--config.").split("=")
        section, field = path.split(".")
        setattr(getattr(config, section), field, int(value))
    return config


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_killed_process_goes_on_exactly(tmp_path: pathlib.Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    finish("sft", tmp_path / "whole")
    (tmp_path / "parts" / "killed").mkdir()
    policy.save(tmp_path / "parts" / "killed" / "sft", policy.load(tmp_path / "whole" / "killed" / "sft"))
    printed = finish("rl", tmp_path / "whole")
    assert printed.count("rl round") == 3
    before = kill_in_the_second_round(tmp_path / "parts")
    assert before.count("rl round") == 1, "it was killed within the second round"
    after = finish("rl", tmp_path / "parts")
    assert "resumed after round 0" in after and after.count("rl round") == 2
    whole, parts = final_checkpoint(tmp_path / "whole"), final_checkpoint(tmp_path / "parts")
    same(parts[0], whole[0])
    assert parts[1:] == whole[1:] and parts[1] == 3
    assert int(whole[0].step) > 0, "no round had a gradient: the test would say nothing"
    same(*(policy.load(tmp_path / name / "killed" / "rl").params for name in ("parts", "whole")))
