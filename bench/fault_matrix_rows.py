"""The rows of the fault matrix: how each fault is injected, and when its victim is back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.fault_matrix_fleet import GhostFleet, fill_disk, pause

SPOOL_VICTIM, STORE_VICTIM = "robot-01", "store-1"
FAULT_S = 3.0  # how long a camera or a driver stays broken
CONTROLLER_AWAY_S, CONTROLLER_AWAY_QUICK_S = 60.0, 8.0


@dataclasses.dataclass
class Injection:
    """What was done. victims: robots that may stop. rejoined: the victim serves again. causes: (station, worker) whose
    end should be explained; empty where nothing ended."""

    time_s: float
    victims: tuple[str, ...]
    rejoined: Callable[[], bool]
    causes: tuple[tuple[str, str], ...] = ()
    clean_up: Callable[[], None] = lambda: None


Inject = Callable[[GhostFleet, random.Random, bool], Injection]


@dataclasses.dataclass(frozen=True)
class Row:
    """marked: its robots' actions carry marks, by which a stale one is known."""

    name: str
    what: str
    inject: Inject
    prepare: Callable[[GhostFleet], object] = lambda fleet: None
    marked: bool = True


def _robot(fleet: GhostFleet, rng: random.Random) -> tuple[str, str, int]:
    """A robot that acts now, its worker and pid. The robots of the disk rows are left out."""
    station = rng.choice([name for name in fleet.stations if name != SPOOL_VICTIM])
    fleet.wait(lambda: fleet.worker(station)[1], f"worker at {station}")
    return station, *fleet.worker(station)


def _acts_again(fleet: GhostFleet, station: str, pid: int, since_s: float) -> Callable[[], bool]:
    return lambda: any(fact["pid"] != pid for fact in fleet.since(station, since_s, "act"))


def _serves_again(fleet: GhostFleet, station: str, worker: str) -> Callable[[], bool]:
    return lambda: fleet.worker(station)[0] not in ("", worker)


def _signal_robot(number: signal.Signals) -> Inject:
    def inject(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
        station, worker, pid = _robot(fleet, rng)
        now_s = time.monotonic()
        os.kill(pid, number)
        return Injection(now_s, (station,), _acts_again(fleet, station, pid, now_s), ((station, worker),))

    return inject


def _kill_station(role: str, when: Callable[[GhostFleet, str], object] = lambda fleet, station: None) -> Inject:
    def inject(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
        names = [row["name"] for row in fleet.rows("SELECT name FROM stations WHERE role = ? ORDER BY name", (role,))]
        station = rng.choice(names)
        fleet.wait(lambda: fleet.worker(station)[1], f"worker at {station}")
        worker, pid = fleet.worker(station)
        when(fleet, station)
        now_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return Injection(now_s, (), _serves_again(fleet, station, worker), ((station, worker),))

    return inject


def _while_writing(fleet: GhostFleet, store: str) -> None:
    """Until a transfer is on its way into the store (or half a minute passed: then any moment will do)."""
    incoming = fleet.run_dir / "experience" / store / "incoming"
    with contextlib.suppress(TimeoutError):
        fleet.wait(lambda: any(incoming.glob("*.part")) or any(incoming.glob("*.encoded")), "transfer", 30.0)


def _ghost_fault(kind: str) -> Inject:
    def inject(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
        station, worker, pid = _robot(fleet, rng)
        now_s = time.monotonic()
        fleet.fault(station, kind)
        fleet.wait(lambda: fleet.worker(station)[0] != worker, f"end of {worker}", 60.0)
        pause(max(0.0, FAULT_S - (time.monotonic() - now_s)))
        fleet.fault(station, "")
        ended_s = time.monotonic()  # the fault's own time is not the system's
        return Injection(ended_s, (station,), _acts_again(fleet, station, pid, ended_s), ((station, worker),))

    return inject


def _clock_jump(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    """Forwards or back by an hour; nothing has to end, the robot must go on and its episodes must arrive."""
    station, _, _ = _robot(fleet, rng)
    fleet.fault(station, f"clock:{rng.choice((-3600, 3600))}")
    now_s = time.monotonic()
    done = lambda: len(fleet.since(station, now_s, "labelled")) >= 2  # noqa: E731
    return Injection(now_s, (station,), done, (), lambda: fleet.fault(station, ""))


def _oom(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    station, worker, pid = _robot(fleet, rng)
    group = fleet.limit_memory(pid, 64)
    now_s = time.monotonic()
    fleet.fault(station, "memory")
    fleet.wait(lambda: not Path(f"/proc/{pid}").exists(), f"end of {worker} by the kernel", 60.0)
    fleet.fault(station, "")
    return Injection(
        now_s, (station,), _acts_again(fleet, station, pid, now_s), ((station, worker),), lambda: _remove(group)
    )


def _remove(group: Path) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        pause(0.1)


def _full_spool(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    filler = fill_disk(fleet.run_dir / "spool" / SPOOL_VICTIM)
    pause(FAULT_S)
    filler.unlink()
    now_s = time.monotonic()
    return Injection(now_s, (SPOOL_VICTIM,), lambda: fleet.acting([SPOOL_VICTIM], now_s))


def _full_store(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    """The store's disk is full for a while; it is back when it takes an episode again."""
    fleet.wait(lambda: fleet.worker(STORE_VICTIM)[1], f"worker at {STORE_VICTIM}")
    folder, (worker, _) = fleet.run_dir / "experience" / STORE_VICTIM, fleet.worker(STORE_VICTIM)
    filler = fill_disk(folder)
    pause(FAULT_S)
    ended = fleet.worker(STORE_VICTIM)[0] != worker
    filler.unlink()
    now_s, ledger = time.monotonic(), folder / "stored.jsonl"
    size = ledger.stat().st_size if ledger.exists() else 0
    taken = lambda: ledger.exists() and ledger.stat().st_size > size  # noqa: E731
    return Injection(now_s, (), taken, ((STORE_VICTIM, worker),) if ended else ())


def _controller(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    """Killed, and kept dead: the launcher that would restart it is stopped meanwhile."""
    os.kill(fleet.process.pid, signal.SIGSTOP)
    os.kill(fleet.child_pid("controller"), signal.SIGKILL)
    pause(CONTROLLER_AWAY_QUICK_S if quick else CONTROLLER_AWAY_S)
    os.kill(fleet.process.pid, signal.SIGCONT)
    now_s, started_s = time.monotonic(), time.time()
    query = "SELECT max(updated_s) FROM stations"
    return Injection(now_s, (), lambda: bool(fleet.rows(query)) and (fleet.rows(query)[0][0] or 0) > started_s)


def _node(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    """A node agent is killed, and with it every worker of its node."""
    victims = tuple(row["name"] for row in fleet.rows("SELECT name FROM stations WHERE node = 'node-1'"))
    now_s = time.monotonic()
    os.kill(fleet.child_pid("node-1"), signal.SIGKILL)
    return Injection(now_s, victims, lambda: all(fleet.since(one, now_s, "connect") for one in victims)
                     and fleet.acting(victims, now_s + 0.5))  # fmt: skip


def _two_at_once(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
    """A robot's worker and a store in the same moment."""
    store = _kill_station("store")(fleet, rng, quick)
    robot = _signal_robot(signal.SIGKILL)(fleet, rng, quick)
    both = lambda: store.rejoined() and robot.rejoined()  # noqa: E731
    return Injection(store.time_s, robot.victims, both, store.causes + robot.causes)


def _in_checkpoint(fleet: GhostFleet, station: str) -> None:
    """Until a checkpoint is being written: a folder without its committed manifest."""
    folder = fleet.run_dir / "checkpoints"

    def writing() -> bool:
        steps = [path for path in folder.glob("*") if path.is_dir()]
        return any(not (path / "manifest.json").exists() for path in steps)

    fleet.wait(writing, "checkpoint being written", 120.0)


def _learner(when: Callable[[GhostFleet, str], object]) -> Inject:
    """Back with its next loss: the first step after the kill."""
    kill = _kill_station("training", when)
    losses = "SELECT count(*) FROM metrics WHERE key = 'loss'"

    def inject(fleet: GhostFleet, rng: random.Random, quick: bool) -> Injection:
        fleet.wait(lambda: bool(fleet.rows(losses)) and fleet.rows(losses)[0][0] > 0, "first training steps", 300.0)
        done = kill(fleet, rng, quick)
        before = fleet.rows(losses)[0][0]
        return dataclasses.replace(done, rejoined=lambda: fleet.rows(losses)[0][0] > before)

    return inject


ROWS = (
    Row("sigkill", "SIGKILL of a robot's worker", _signal_robot(signal.SIGKILL)),
    Row("sigstop", "SIGSTOP of a robot's worker (half-open; noticed after its 10 s limit)",
        _signal_robot(signal.SIGSTOP)),
    Row("spool_full", "a robot's disk is full for 3 s", _full_spool,
        lambda fleet: fleet.mount_tmpfs(f"spool/{SPOOL_VICTIM}", 96)),
    Row("store_full", "a store's disk is full for 3 s", _full_store,
        lambda fleet: fleet.mount_tmpfs(f"experience/{STORE_VICTIM}", 2048)),
    Row("oom", "a robot's worker out of memory (cgroup)", _oom),
    Row("clock_jump", "a robot's wall clock jumps by an hour", _clock_jump),
    Row("dead_camera", "no frames for 3 s", _ghost_fault("dead_camera")),
    Row("frozen_camera", "the same frame for 3 s", _ghost_fault("frozen_camera")),
    Row("driver", "exception in a robot's driver for 3 s", _ghost_fault("driver")),
    Row("inference", "inference worker killed in a batch", _kill_station("inference")),
    Row("store", "store killed in a write", _kill_station("store", _while_writing)),
    Row("home", "channel replica lost", _kill_station("home")),
    Row("controller", "controller killed for 60 s (8 s with --quick)", _controller),
    Row("node", "node lost: its agent and all its workers", _node),
    Row("two", "a robot and a store at once", _two_at_once),
)  # fmt: skip
LEARNER_ROWS = (
    Row("learner_step", "learner killed in a step", _learner(lambda fleet, station: None)),
    Row("learner_checkpoint", "learner killed in a checkpoint", _learner(_in_checkpoint)),
)
# A robot that is stopped half-open, the disks and the clock have no row here: they are the same code.
PHYSICAL_ROWS = tuple(
    dataclasses.replace(
        row, name=f"physical_{row.name}", what=f"four physical robots, nano policy: {row.what}", marked=False
    )
    for row in (*ROWS, *LEARNER_ROWS)
    if row.name in ("sigkill", "inference", "store", "home", "controller", "two", "learner_step")
)
