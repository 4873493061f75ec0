"""The environment worker: one robot, episode after episode. `python -m cel_jax.workers.environment`

Everything it holds is the episode in progress; a labelled episode belongs to the station's spool.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import zlib
from collections.abc import Iterator

from cel_jax.bus.channels import ObservationClient
from cel_jax.bus.courier import Courier
from cel_jax.bus.errors import BusError, ClientClosed
from cel_jax.bus.spool import Spool
from cel_jax.data.episode import EpisodeHeader
from cel_jax.recovery import latency_record, rundb
from cel_jax.recovery.beat import WorkerContext
from cel_jax.robots.plugged import check_features, is_plugged, make_plugged
from cel_jax.robots.protocol import Robot
from cel_jax.robots.tasks import make_robot
from cel_jax.workers.episode import EmergencyStopped, EpisodeRun, Stopped, frame_bytes
from cel_jax.workers.labelling import Labels, open_labels
from cel_jax.workers.wiring import HOME, Wiring, ghost_episodes, load_features, store_name

PAUSE_S, MAX_WAIT_S = 0.1, 5.0


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context = wiring.context
    robot = open_robot(wiring)
    with (
        _links(wiring) as (infer, spool, courier),  # before the robot: it is never on without a line to its commander
        open_labels(wiring, robot, spool, courier) as labels,
    ):
        try:
            robot.connect()
            check_features(robot.robot_id, robot.features, load_features(wiring.run_dir))
            context.ready()
            _collect(wiring, robot, infer, spool, courier, labels)
        finally:
            robot.disconnect()
    context.close()


def open_robot(wiring: Wiring) -> Robot:
    """The station's robot."""
    task, fleet = wiring.config.task, wiring.config.fleet
    index = wiring.context.robot
    if index is None:
        raise RuntimeError(f"station {wiring.context.identity.station}: its placement names no robot")
    if fleet.robots_are == "ghost":
        return _open_ghost(wiring, index)
    if is_plugged(fleet.robots_are):
        return make_plugged(fleet.robots_are, fleet.first_robot + index)
    return make_robot(
        task.name, robot_seed=fleet.first_robot + index, mode=task.mode, image_px=task.image_px,
        pose_range=task.pose_range, no_progress_s=task.no_progress_s, max_episode_s=task.max_episode_s,
        real_time=fleet.real_time,
    )  # fmt: skip


def _open_ghost(wiring: Wiring, index: int) -> Robot:
    from cel_jax.robots.ghost import open_ghost

    ghost, station = wiring.config.ghost, wiring.context.identity.station
    folder = ghost_episodes(wiring.run_dir, wiring.config)
    return open_ghost(
        wiring.run_dir, station, index, folder, load_features(wiring.run_dir), clock_factor=ghost.clock_factor,
        frames=ghost.frames, tagged=not wiring.config.fleet.learner,
    )  # fmt: skip


@contextlib.contextmanager
def _links(wiring: Wiring) -> Iterator[tuple[ObservationClient, Spool, Courier]]:
    """The observation channel, the station's spool, and the courier on sockets of its own."""
    bus, station = wiring.config.bus, wiring.context.identity.station
    spool = Spool(wiring.run_dir / "spool" / station, wiring.context.identity.worker)
    spool.drop_partials()
    stores = [wiring.client(name, f"{name}-intake") for name in map(store_name, range(wiring.config.fleet.stores))]
    home = wiring.client(HOME)
    courier = Courier(
        spool,
        stores,
        limit_bytes_s=float(bus.transfer_limit_bytes_s),
        piece_bytes=bus.piece_bytes,
        on_failure=wiring.report,
    )
    try:
        with courier:
            yield ObservationClient(home), spool, courier
    finally:
        for client in (home, *stores):
            client.close()


def _collect(
    wiring: Wiring, robot: Robot, infer: ObservationClient, spool: Spool, courier: Courier, labels: Labels
) -> None:
    """Episodes until the stop. One failed request ends its episode, never the worker; a dead part of it does."""
    context, in_a_row = wiring.context, 0
    for number in itertools.count():
        while context.paused() and not context.should_stop():
            context.stop_event.wait(PAUSE_S)
        if context.should_stop():
            return
        if not labels.wait_for_start():
            return
        context.progress(f"episode {number}")
        courier.check()
        try:
            run_one(wiring, robot, infer, spool, f"{context.identity.worker}-{number:05d}", labels)
            courier.notify()
            _note_latency(wiring, infer, courier)
            in_a_row = 0
        except Stopped:
            return
        except EmergencyStopped as error:
            context.report("emergency stop", f"{context.identity.station}: episode {error} dropped")
        except ClientClosed:  # its thread died: no later episode would do better
            raise
        except BusError as error:
            context.report("episode abandoned", f"{context.identity.station}: {error}")
            context.stop_event.wait(min(MAX_WAIT_S, PAUSE_S * 2**in_a_row))  # a full disk stays full for a while
            in_a_row += 1


def _note_latency(wiring: Wiring, infer: ObservationClient, courier: Courier) -> None:
    """Once an episode: how long answers and deliveries took since the last note."""
    db, identity = rundb.open_db(wiring.run_dir), wiring.context.identity
    try:
        measured = {"observation to action": infer.latency, "label to store": courier.latency}
        latency_record.note(db, identity.station, identity.worker, measured)
    finally:
        db.close()


def run_one(wiring: Wiring, robot: Robot, infer: ObservationClient, spool: Spool, episode: str, labels: Labels) -> None:
    """One episode from reset to its label in the spool. Raises Stopped, or BusError for a lost channel."""
    context, task = wiring.context, wiring.config.task
    identity = context.identity
    header = EpisodeHeader(
        episode, identity.station, identity.worker, robot.robot_id, robot.calibration_hash, task.name, task.prompt,
        robot.features.fps_hz, time.time(),
    )  # fmt: skip
    db = rundb.open_db(wiring.run_dir)
    try:
        writer = spool.begin(episode, worst_case_bytes(wiring, robot))
        rundb.start_episode(db, episode, identity.station, identity.worker, robot.robot_id, header.start_time_s)
        run = EpisodeRun(wiring, robot, infer, header, writer, labels)
        try:
            labels.begin(episode)
            with labels.moves():
                robot.reset(_scene_seed(wiring.config.fleet.seed, episode))
            verdict = run.until_verdict()
            labels.note_finished(header, run, verdict)
        except BaseException:
            writer.abandon()
            raise
        writer.finish()
        rundb.end_episode(db, episode, run.steps, run.policy_version, time.time())
        if not labels.settle(db, header, verdict):
            raise Stopped(episode)
        confirm = getattr(robot, "on_labelled", None)  # a lamp or a ledger at the robot
        if confirm is not None:
            confirm(episode)
    finally:
        db.close()


def worst_case_bytes(wiring: Wiring, robot: Robot) -> int:
    """What the longest episode may take in the spool, so that a full disk shows before the robot moves."""
    frames = int(wiring.config.task.max_episode_s * robot.features.fps_hz) + 1
    return frames * frame_bytes(robot.features, wiring.config.task.image_stride_frames)


def _scene_seed(fleet_seed: int, episode: str) -> int:
    """Another scene for each episode, also after a relaunch; far from the evaluation's scenes."""
    return 10_000_000 + zlib.crc32(f"{fleet_seed}/{episode}".encode())


if __name__ == "__main__":
    main()
