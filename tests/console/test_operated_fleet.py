"""A small fleet of real processes whose episodes are started, labelled and stopped through the page."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fault_matrix_fleet import GhostFleet
from cel_jax.data.episode_codec import decode_episode
from cel_jax.robots.ghost_census import take_census
from tests.console.operator_script import Page, wait

FLAGS = ("--config.fleet.labels=operator", "--config.ghost.tapes=2", "--config.ghost.frames=45")
PORT = 5830


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded once for all tests here."""
    from cel_jax.robots.ghost_tapes import record_tapes
    from configs.ghosts import get_config

    folder, task = tmp_path_factory.mktemp("tapes"), get_config().task
    record_tapes(
        folder, 2, task=task.name, prompt=task.prompt, mode=task.mode, image_px=task.image_px,
        max_episode_s=task.max_episode_s, no_progress_s=task.no_progress_s,
        image_stride_frames=task.image_stride_frames,
    )  # fmt: skip
    return folder


@pytest.fixture
def fleet(tmp_path: Path, tapes: Path, request: pytest.FixtureRequest) -> Iterator[GhostFleet]:
    more = getattr(request, "param", ())
    words = [one.format(keys=tmp_path / "keys") for one in more]
    made = GhostFleet(tmp_path, "main", 2, *FLAGS, f"--config.ghost.episodes={tapes}", *words)
    try:
        made.wait(lambda: made.worker("desk")[1], "the desk")
        yield made
    finally:
        made.close()


@pytest.fixture
def page(fleet: GhostFleet) -> Iterator[Page]:
    with Page(fleet.run_dir.parent, fleet.run_dir.name) as page:
        for station in fleet.stations:
            page.wait_state(station, "waiting for start")
        yield page


def play(page: Page, station: str) -> str:
    """Starts an episode and returns its name once it waits for its label."""
    page.order("start", station=station)
    return page.wait_state(station, "waiting for label")["episode"]


def labels(fleet: GhostFleet) -> dict[str, tuple[str, str, str]]:
    found = fleet.rows("SELECT episode, outcome, author, reason FROM labels WHERE undone_s IS NULL")
    return {row["episode"]: (row["outcome"], row["author"], row["reason"]) for row in found}


def stored(fleet: GhostFleet) -> dict[str, tuple[str, str, str]]:
    """What the stores hold, from their own files."""
    paths = [
        path
        for kind in ("successes", "failures", "discards")
        for path in fleet.run_dir.glob(f"experience/*/{kind}/*.cel")
    ]
    found = [decode_episode(path.read_bytes()) for path in paths]
    return {one.header.id: (one.label.outcome.value, one.label.author, one.label.reason) for one in found}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fleet",
    [(), ("--config.bus.tcp_host=127.0.0.1", f"--config.bus.tcp_port={PORT}", "--config.bus.keys={keys}")],
    indirect=True, ids=["ipc", "curve"],
)  # fmt: skip
def test_labels_of_the_page_arrive_in_the_stores(fleet: GhostFleet, page: Page) -> None:
    said = {}
    for outcome, reason in (("failure", ""), ("success", ""), ("discard", "a bad reset")):
        for station in fleet.stations:
            episode = play(page, station)
            page.order("label", episode=episode, outcome=outcome, reason=reason)
            assert labels(fleet)[episode] == (outcome, "ann", reason), "confirmed before it was on disk"
            said[episode] = (outcome, "ann", reason)
    wait(lambda: stored(fleet) == said, "the labelled episodes in the stores", 40)
    for episode in said:
        status, answer = page.ask("/api/label", {"episode": episode, "outcome": "success", "author": "bob"})
        assert status == 409 and episode in answer["error"] and "ann" in answer["error"], answer
    assert fleet.stop() == 0
    census = take_census(fleet.run_dir)
    assert census.clean and census.labelled == 6, census


@pytest.mark.slow
def test_an_undone_label_is_given_again_and_a_killed_page_and_desk_lose_none(fleet: GhostFleet, page: Page) -> None:
    first, second = play(page, "robot-00"), play(page, "robot-01")
    page.order("label", episode=first, outcome="success")
    page.order("undo", episode=first)
    assert first not in labels(fleet)
    page.order("label", episode=first, outcome="failure")
    page.kill()
    os.kill(fleet.worker("desk")[1], signal.SIGKILL)
    with Page(fleet.run_dir.parent, fleet.run_dir.name) as page:
        wait(lambda: page.episodes().get(first, {}).get("outcome") == "failure", "the label after the kill")
        page.order("label", episode=second, outcome="success")
        status, answer = page.ask("/api/undo", {"episode": "none-such", "author": "ann"})
        assert status == 404 and "none-such" in answer["error"]
        wait(lambda: set(stored(fleet)) == {first, second}, "both episodes in the stores", 40)
        assert stored(fleet)[first][0] == "failure" and stored(fleet)[second][0] == "success"


@pytest.mark.slow
def test_the_emergency_stop_acts_at_once_and_holds_until_its_release(fleet: GhostFleet, page: Page) -> None:
    page.order("start", station="robot-00")
    page.wait_state("robot-00", "running")
    pressed_s = time.monotonic()
    page.order("stop", stations=["robot-00"])
    page.wait_state("robot-00", "emergency stop", 5)
    assert time.monotonic() - pressed_s < 1.0
    status, answer = page.ask("/api/start", {"station": "robot-00", "author": "ann"})
    assert status == 409 and "release it first" in answer["error"]
    os.kill(fleet.worker("desk")[1], signal.SIGKILL)  # no process may forget a stop
    os.kill(fleet.worker("robot-00")[1], signal.SIGKILL)
    wait(lambda: fleet.worker("desk")[1] and fleet.worker("robot-00")[1], "both back")
    page.wait_state("robot-00", "emergency stop")
    page.wait_state("robot-01", "waiting for start")
    play(page, "robot-01")
    page.order("release", stations=[])
    page.wait_state("robot-00", "waiting for start")
    assert play(page, "robot-00")


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [("--config.fleet.label_deadline_s=3",)], indirect=True)
def test_nobody_labels(fleet: GhostFleet, page: Page) -> None:
    episode = play(page, "robot-00")
    wait(lambda: page.episodes().get(episode, {}).get("reason") == "no label", "the discard", 10)
    page.wait_state("robot-00", "waiting for start")
    wait(lambda: stored(fleet) == {episode: ("discard", "deadline", "no label")}, "the discard in the store", 30)


@pytest.mark.slow
def test_a_label_ends_the_episode_that_runs_and_a_worker_may_die_before_it(fleet: GhostFleet, page: Page) -> None:
    page.order("start", station="robot-00")
    running = page.wait_state("robot-00", "running")["episode"]
    page.order("label", episode=running, outcome="failure")
    finished = play(page, "robot-01")
    os.kill(fleet.worker("robot-01")[1], signal.SIGKILL)
    wait(lambda: fleet.worker("robot-01")[1], "the worker")
    page.wait_state("robot-01", "waiting for start")
    page.order("label", episode=finished, outcome="success")
    wait(lambda: set(stored(fleet)) == {running, finished}, "both episodes in the stores", 40)
    assert stored(fleet)[running][0] == "failure"
