"""Who labels an episode: the robot's own side, or an operator at the desk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cel_jax.bus.courier import Courier
from cel_jax.bus.durable import remove_durably, write_durably
from cel_jax.bus.errors import BusError
from cel_jax.bus.spool import Spool
from cel_jax.console import desk
from cel_jax.console.desk import Finished, Orders, Report, StationLink
from cel_jax.data.episode import EpisodeHeader, Label, Outcome
from cel_jax.data.frame_log import encode_label
from cel_jax.recovery import rundb
from cel_jax.robots.protocol import Robot, Verdict
from cel_jax.workers.episode import EmergencyStopped, EpisodeRun, Watch
from cel_jax.workers.wiring import OPERATOR, Wiring

TURN_S = 0.1
STOP_LIMIT_S = 2.0  # a robot whose call still runs by then loses its worker: no command comes any more
META = ".waiting"  # beside a finished episode: whose it is, so that it can be labelled after a restart


class Labels(Watch):
    """The simulator's: it knows the outcome, and its label is final at once."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def wait_for_start(self) -> bool:
        """Returns when the next episode may begin; False where the worker is to stop."""
        return True

    def begin(self, episode: str) -> None:
        """An episode begins."""

    def note_finished(self, header: EpisodeHeader, run: EpisodeRun, verdict: Verdict | None) -> None:
        """Before the episode counts as finished in the spool."""

    def settle(self, db: sqlite3.Connection, header: EpisodeHeader, verdict: Verdict | None) -> bool:
        """Returns once the finished episode has its label; False where the worker has to stop before."""
        assert verdict is not None
        label = Label(Outcome(verdict.outcome), "simulator", time.time(), verdict.reason)
        self._spool.label(header.id, encode_label(header, label))
        rundb.label_episode(db, header.id, label.outcome.value, label.author, label.reason)
        return True


@contextlib.contextmanager
def open_labels(wiring: Wiring, robot: Robot, spool: Spool, courier: Courier) -> Iterator[Labels]:
    """As `fleet.labels` says."""
    if wiring.config.fleet.labels != OPERATOR:
        yield Labels(spool)
        return
    client = wiring.client(desk.DESK)
    labels = OperatorLabels(wiring, robot, spool, courier)
    labels.link = StationLink(client, labels.report, labels.take, wiring.config.fleet.desk_silence_s, labels.halt)
    labels.link.start()
    try:
        yield labels
    finally:
        labels.end()
        client.close()


class OperatorLabels(Labels):
    """A person starts, labels and stops. `report` and `take` run on the link's thread, the rest on the worker's.

    A label goes into the spool once it can no longer be undone; until then the episode is unlabelled there.
    """

    link: StationLink

    def __init__(self, wiring: Wiring, robot: Robot, spool: Spool, courier: Courier) -> None:
        super().__init__(spool)
        self._wiring, self._context, self._robot, self._courier = wiring, wiring.context, robot, courier
        task = wiring.config.task
        self._max_steps = int(task.max_episode_s * robot.features.fps_hz)
        self._motion = threading.Lock()  # held while the robot may move
        self._phase, self._since_s, self._started, self._ending = "starting", time.monotonic(), "", False
        self._halts, self._halts_at_start, self._halted_s = 0, 0, 0.0
        self._run: EpisodeRun | None = None
        self._episode, self._known = "", dict[str, tuple[EpisodeHeader, Finished]]()
        self._drop_stale()

    # -- the worker's thread -----------------------------------------------------------------------------------------

    def wait_for_start(self) -> bool:
        self._enter(desk.WAITS_FOR_START)
        while not self._context.should_stop():
            self._turn()
            self._halts_at_start = self._halts  # before the look at the stop: one in between is not missed
            if self.link.stop_due:
                self._stand_still()
            elif self._context.paused():
                self._enter(desk.PAUSED)
            elif self.link.orders.start not in ("", self._started):
                self._started = self.link.orders.start
                return True
            else:
                self._enter(desk.WAITS_FOR_START)
        return False

    def begin(self, episode: str) -> None:
        self._episode, self._run = episode, None
        self._enter(desk.RESETTING)

    @contextlib.contextmanager
    def moves(self) -> Iterator[None]:
        """Also after a release, what was stopped never goes on: it needs another start."""
        with self._motion:
            if self.link.stop_due or self._halts != self._halts_at_start:
                raise EmergencyStopped(self._episode)
            yield

    def ends(self, run: EpisodeRun) -> bool:
        if self._run is None:
            self._run = run
            self._enter(desk.RUNNING)
        return self.link.orders.end == run.episode or run.steps >= self._max_steps

    def note_finished(self, header: EpisodeHeader, run: EpisodeRun, verdict: Verdict | None) -> None:
        said = "" if verdict is None else Outcome(verdict.outcome).value
        one = Finished(
            header.id, header.worker, header.robot_id, header.start_time_s, run.steps, run.policy_version, time.time(),
            said,
        )  # fmt: skip
        meta = {"header": dataclasses.asdict(header), "finished": dataclasses.asdict(one)}
        write_durably(self._meta(header.id), json.dumps(meta).encode())

    def settle(self, db: sqlite3.Connection, header: EpisodeHeader, verdict: Verdict | None) -> bool:
        """Until its label is on record at the desk, where it can still be undone."""
        self._enter(desk.WAITS_FOR_LABEL)
        while header.id not in self.link.orders.labels and header.id in self._spool.unlabelled():
            if self._context.should_stop():
                return False
            self._turn()
        return True

    def end(self) -> None:
        """The worker ends: what nobody can undo any more goes into the spool."""
        self._ending = True
        self.link.close()

    def _turn(self) -> None:
        self.link.check()
        self._courier.check()
        self.link.wait(TURN_S)
        self._context.progress(self._phase)

    def _stand_still(self) -> None:
        """Safe stop until the release; then the robot is opened again, and waits for a start."""
        self._robot.disconnect()
        self._enter(desk.STANDS_STILL)
        while self.link.stop_due and not self._context.should_stop():
            self._turn()
        if not self._context.should_stop():
            self._robot.connect()
            self._enter(desk.WAITS_FOR_START)

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase, self._since_s = phase, time.monotonic()

    # -- the link's thread -------------------------------------------------------------------------------------------

    def halt(self) -> None:
        """Once for each stop. A robot that can be halted from another thread has `emergency_stop`."""
        self._halts, self._halted_s = self._halts + 1, time.monotonic()
        halt = getattr(self._robot, "emergency_stop", None)
        if halt is not None:
            halt()

    def _end_if_it_moves(self) -> None:
        """A stop that the robot's call under way does not heed ends the worker."""
        if self.link.stop_due and self._motion.locked() and time.monotonic() - self._halted_s > STOP_LIMIT_S:
            self._context.give_up(f"emergency stop: the robot's call still runs after {STOP_LIMIT_S:g} s")

    def report(self) -> Report:
        self._end_if_it_moves()
        run, for_s = self._run, time.monotonic() - self._since_s
        still = self.link.stop_due and not self._motion.locked()  # whoever takes the lock from here on sees the stop
        return Report(
            self._phase, self._episode, run.steps if run else 0, run.policy_version if run else -1, for_s,
            self._started, still, self._ending, tuple(one for _, one in self._finished().values()),
        )  # fmt: skip

    def take(self, orders: Orders) -> None:
        """Final labels go into the spool, once; what fails is told and tried again with the next orders."""
        for episode, (label, final) in orders.labels.items():
            if final and episode in self._known:
                try:
                    self._write(self._known[episode][0], label)
                except (BusError, OSError, rundb.RunDbError, sqlite3.Error) as error:
                    self._context.report("label not spooled", f"episode {episode}: {error}")

    def _write(self, header: EpisodeHeader, label: Label) -> None:
        if header.id in self._spool.unlabelled():
            self._spool.label(header.id, encode_label(header, label))
        db = rundb.open_db(self._wiring.run_dir)
        try:
            if rundb.get_episode(db, header.id).outcome is None:  # of a machine that joined: its own run.db
                rundb.label_episode(db, header.id, label.outcome.value, label.author, label.reason, label.time_s)
        finally:
            db.close()
        remove_durably(self._meta(header.id))
        self._known.pop(header.id, None)
        self._courier.notify()

    def _finished(self) -> Mapping[str, tuple[EpisodeHeader, Finished]]:
        """The episodes that wait in the spool, the oldest few where there are many."""
        waiting = [name for name in self._spool.unlabelled() if self._meta(name).exists()][: desk.MAX_FINISHED]
        for name in waiting:
            if name not in self._known:
                meta = json.loads(self._meta(name).read_bytes())
                self._known[name] = EpisodeHeader(**meta["header"]), Finished(**meta["finished"])
        return {name: self._known[name] for name in waiting}

    def _meta(self, episode: str) -> Path:
        return self._spool.folder / f"{episode}{META}"

    def _drop_stale(self) -> None:
        """Notes of episodes that never finished, or that have their label."""
        waiting = set(self._spool.unlabelled())
        for path in self._spool.folder.glob(f"*{META}"):
            if path.stem not in waiting:
                path.unlink()
