"""Ghost robots: replay, their ledger, injected faults, and the census that counts a run against the ledgers."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest

from cel_jax.bus.spool import Spool
from cel_jax.data.episode import Episode, EpisodeHeader, Features, Label, Outcome, Source
from cel_jax.data.episode_codec import encode_episode
from cel_jax.data.frame_log import Frame, encode_frame, encode_label, frames_to_episode
from cel_jax.robots.ghost import GhostRobot, stub_actions
from cel_jax.robots.ghost_census import Census, take_census
from cel_jax.robots.ghost_faults import FaultFile
from cel_jax.robots.ghost_ledger import Ledger, read_ledger
from cel_jax.robots.ghost_tapes import load_tapes, tape_features
from cel_jax.robots.protocol import RobotError

FEATURES = Features("toy", 3, 3, (), (2, 4), 30.0, (True, True, False))
LENGTH = 7


def make_tape(name: str, outcome: Outcome = Outcome.SUCCESS) -> Episode:
    rng = np.random.default_rng(len(name))

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    frames = [
        Frame(step, draw(3), draw(3), {}, draw(2, 4), step / 30, 0, int(Source.POLICY), False, -1)
        for step in range(LENGTH)
    ]
    header = EpisodeHeader(name, "recorder", "recorder", "toy-1", "0" * 16, "toy", "Toy.", 30.0, 1.0)
    return frames_to_episode(header, Label(outcome, "simulator", 1.0, "said so"), frames)


def make_ghost(run_dir: Path, index: int = 5, **more: object) -> GhostRobot:
    ledger = Ledger(run_dir / "ledger" / f"robot-{index:02d}.jsonl")
    tapes = [make_tape("a"), make_tape("bb", Outcome.FAILURE)]
    return GhostRobot(index, tapes, FEATURES, ledger=ledger, clock_factor=1e6, **more)  # type: ignore[arg-type]


def play(ghost: GhostRobot, spool: Spool, episode: str, seed: int = 0) -> None:
    """One episode as a station plays it, with the stub policy and chunks of three actions."""
    ghost.reset(seed)
    writer, step, verdict = spool.begin(episode, 1), 0, None
    while verdict is None:
        seen = ghost.get_observation()
        for action in stub_actions(seen.state[None], 3, 3)[0]:
            executed = ghost.send_action(action)
            frame = Frame(step, seen.state, executed, {}, seen.objects, seen.capture_time_s, 0, 0, False, -1)
            writer.append(encode_frame(frame))
            step, verdict = step + 1, ghost.verdict()
            if verdict is not None:
                break
            seen = ghost.get_observation()
    writer.finish()
    header = EpisodeHeader(episode, "robot-05", "w", ghost.robot_id, ghost.calibration_hash, "toy", "Toy.", 30.0, 1.0)
    spool.label(episode, encode_label(header, Label(verdict.outcome, "simulator", 2.0)))
    ghost.on_labelled(episode)


def facts(run_dir: Path, kind: str) -> list[dict]:
    return [fact for fact in read_ledger(run_dir / "ledger" / "robot-05.jsonl") if fact["fact"] == kind]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with one ghost and two delivered-nowhere episodes: e1 a success, e2 a failure."""
    ghost, spool = make_ghost(tmp_path), Spool(tmp_path / "spool" / "robot-05", "w", spare_bytes=0)
    play(ghost, spool, "e1", seed=0)
    play(ghost, spool, "e2", seed=1)
    return tmp_path


def test_a_ghost_replays_its_tape_with_its_outcome(run_dir: Path) -> None:
    assert [fact["outcome"] for fact in facts(run_dir, "verdict")] == ["success", "failure"]
    assert [fact["frames"] for fact in facts(run_dir, "verdict")] == [LENGTH, LENGTH]
    assert facts(run_dir, "stale") == []


def test_a_limit_of_frames_ends_a_tape_early(tmp_path: Path) -> None:
    ghost = make_ghost(tmp_path, frames=4)
    play(ghost, Spool(tmp_path / "spool" / "robot-05", "w", spare_bytes=0), "e1")
    assert facts(tmp_path, "verdict")[0]["frames"] == 4


@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["of another robot", "of an earlier observation", "out of order"])
def test_a_stale_action_is_noted_when_it_is_executed(tmp_path: Path, wrong: int) -> None:
    ghost = make_ghost(tmp_path)
    ghost.reset(0)
    chunk = stub_actions(ghost.get_observation().state[None], 3, 3)[0]
    chunk[0, wrong] += 1
    ghost.send_action(chunk[0])
    assert len(facts(tmp_path, "stale")) == 1


def test_two_workers_of_a_station_never_tell_the_same_story(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool" / "robot-05", "w", spare_bytes=0)
    for number in range(2):
        play(make_ghost(tmp_path), spool, f"e{number}")  # the same tape
    assert len({fact["digest"] for fact in facts(tmp_path, "verdict")}) == 2


def test_census_of_a_whole_run_is_clean(run_dir: Path) -> None:
    census = take_census(run_dir)
    assert census.clean and (census.labelled, census.held) == (2, 2)


def settle(run_dir: Path, store: str, episode: str) -> Path:
    """Puts a spooled episode into a store as well, as a courier and a store would."""
    from cel_jax.bus.records import read_episode
    from cel_jax.data.frame_log import decode_frame, decode_label

    records = read_episode(run_dir / "spool" / "robot-05" / f"{episode}.labelled")
    header, label = decode_label(records.label)
    whole = frames_to_episode(header, label, [decode_frame(data) for data in records.frames])
    path = run_dir / "experience" / store / "successes" / f"{episode}.cel"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_episode(whole))
    return path


def test_census_allows_the_spool_what_one_store_has(run_dir: Path) -> None:
    settle(run_dir, "store-0", "e1")
    assert take_census(run_dir).clean


def test_census_names_what_is_lost(run_dir: Path) -> None:
    (run_dir / "spool" / "robot-05" / "e1.labelled").unlink()
    assert take_census(run_dir).lost == ("e1",)


def test_census_names_what_two_stores_hold(run_dir: Path) -> None:
    for store in ("store-0", "store-1"):
        settle(run_dir, store, "e2")
    assert take_census(run_dir).duplicated == ("e2",)


def test_census_names_one_content_under_two_ids(run_dir: Path) -> None:
    path = settle(run_dir, "store-0", "e1")
    from cel_jax.data.episode_codec import decode_episode

    episode = decode_episode(path.read_bytes())
    again = dataclasses.replace(episode, header=dataclasses.replace(episode.header, id="e9"))
    path.with_name("e9.cel").write_bytes(encode_episode(again))
    assert "e9" in take_census(run_dir).duplicated


def test_census_names_what_was_altered_and_what_nobody_finished(run_dir: Path) -> None:
    path = settle(run_dir, "store-0", "e1")
    from cel_jax.data.episode_codec import decode_episode

    episode = decode_episode(path.read_bytes())
    action = episode.action.copy()
    action[3, 1] += 1e-3
    path.write_bytes(encode_episode(dataclasses.replace(episode, action=action)))
    census = take_census(run_dir)
    assert census.altered == ("e1",) and census.unknown == ("e1",)


def test_census_counts_stale_actions_and_unreadable_files(run_dir: Path) -> None:
    Ledger(run_dir / "ledger" / "robot-05.jsonl").write("stale")
    path = run_dir / "spool" / "robot-05" / "e2.labelled"
    path.write_bytes(path.read_bytes()[:-3])
    census = take_census(run_dir)
    assert census.stale == 1 and len(census.unreadable) == 1 and census.lost == ("e2",)
    assert not Census(0, 0, (), (), (), (), 1, ()).clean


@pytest.mark.parametrize("kind,error", [("driver", RuntimeError), ("dead_camera", RobotError)])
def test_injected_faults_are_raised_until_they_end(tmp_path: Path, kind: str, error: type[Exception]) -> None:
    path = tmp_path / "faults" / "robot-05"
    path.parent.mkdir()
    path.write_text(kind)
    ghost = make_ghost(tmp_path, faults=FaultFile(path))
    ghost.reset(0)
    with pytest.raises(error, match=r"ghost-005.*injected"):
        ghost.get_observation()
    path.unlink()
    well = make_ghost(tmp_path, faults=FaultFile(path))
    well.reset(0)
    assert well.get_observation().state.shape == (3,)


def test_a_robot_that_is_away_cannot_be_connected_and_goes_on_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "fault"
    path.write_text("away")
    ghost = make_ghost(tmp_path, faults=FaultFile(path))
    with pytest.raises(RobotError, match="does not answer"):
        ghost.connect()
    ghost.reset(0)
    assert ghost.get_observation().state.shape == (3,)
    path.unlink()
    make_ghost(tmp_path, faults=FaultFile(path)).connect()


def test_a_frozen_camera_repeats_its_capture_time(tmp_path: Path) -> None:
    path = tmp_path / "fault"
    path.write_text("frozen_camera")
    ghost = make_ghost(tmp_path, faults=FaultFile(path))
    ghost.reset(0)
    assert ghost.get_observation().capture_time_s == ghost.get_observation().capture_time_s


def test_a_clock_jump_moves_the_wall_clock_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", time.time)  # restored afterwards
    path = tmp_path / "fault"
    path.write_text("clock:3600")
    before_s, steady_s = time.time(), time.monotonic()
    FaultFile(path).raise_due("ghost-005")
    assert 3590 < time.time() - before_s < 3700 and time.monotonic() - steady_s < 60


def test_tapes_come_from_a_runs_experience(tmp_path: Path) -> None:
    folder = tmp_path / "experience" / "store-0" / "successes"
    folder.mkdir(parents=True)
    (tmp_path / "features.json").write_text(json.dumps(dataclasses.asdict(FEATURES)))
    for name in ("t0", "t1", "t2", "t3"):
        (folder / f"{name}.cel").write_bytes(encode_episode(make_tape(name)))
    assert [tape.header.id for tape in load_tapes(tmp_path / "experience", 2, count=3)] == ["t0", "t2", "t3"]
    assert tape_features(tmp_path / "experience") == FEATURES
    with pytest.raises(RobotError, match="experience folder"):
        load_tapes(tmp_path / "nothing", 0)


def test_a_ledger_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "robot-00.jsonl"
    Ledger(path).write("connect")
    with path.open("ab") as file:
        file.write(b'{"fact":"res')
    assert [fact["fact"] for fact in read_ledger(path)] == ["connect"]
