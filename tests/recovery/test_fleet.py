"""Real processes, real signals: what dies is replaced in place, what lives is left alone, nothing stays behind."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from pathlib import Path

import pytest

from cel_jax.recovery import process, rundb_fleet
from cel_jax.recovery.stations import Desired, Role
from cel_jax.recovery.status import progress_line
from tests.recovery.fleets import FLEET, gone, running, station


def test_killed_worker_is_replaced_in_place_and_others_keep_their_pid(tmp_path: Path) -> None:
    arms = [station(f"arm-{robot}", robot=robot) for robot in range(2)]
    with running(tmp_path, *arms, station("brain", Role.INFERENCE)) as fleet:
        before = fleet.wait_ready("arm-0", "arm-1", "brain")
        os.kill(before["arm-0"].pid, signal.SIGKILL)
        assert fleet.wait(lambda: fleet.replaced(before["arm-0"])) < 2.0
        assert fleet.of("arm-1").pid == before["arm-1"].pid and fleet.of("brain").pid == before["brain"].pid
        incident = fleet.db.execute("SELECT * FROM incidents").fetchall()
        assert [(row["worker"], "SIGKILL" in row["cause"]) for row in incident] == [(before["arm-0"].worker, True)]
        dead = fleet.db.execute("SELECT state FROM workers WHERE worker = ?", (before["arm-0"].worker,)).fetchone()
        assert dead["state"] == "dead"
        assert fleet.stop() == 0


def test_stopped_worker_is_fenced_and_replaced(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", robot=0)) as fleet:
        before = fleet.wait_ready("arm-0")["arm-0"]
        os.kill(before.pid, signal.SIGSTOP)
        fleet.wait(lambda: fleet.replaced(before))
        assert gone(before.pid)
        assert "no heartbeat" in fleet.of("arm-0").cause


def test_stalled_main_loop_is_replaced_though_its_heartbeat_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", mode="stalled", stall_timeout_s=0.5)) as fleet:
        fleet.wait(lambda: fleet.events("retired"))
        assert "no progress" in fleet.events("retired")[0]["cause"]


def test_agent_killed_workers_die_and_come_back(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", mode="parent", robot=0), station("brain", Role.INFERENCE)) as fleet:
        before = fleet.wait_ready("arm-0", "brain")
        child = int((fleet.run_dir / "child-1").read_text())
        os.kill(fleet.child_pid("recovery.agent"), signal.SIGKILL)
        fleet.wait(lambda: all(fleet.replaced(each) for each in before.values()))
        assert all(gone(each.pid) for each in before.values()) and gone(child)
        assert fleet.stop() == 0


@pytest.mark.slow
def test_hanging_agent_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", robot=0)) as fleet:
        before = fleet.wait_ready("arm-0")["arm-0"]
        agent = fleet.child_pid("recovery.agent")
        os.kill(agent, signal.SIGSTOP)
        fleet.wait(lambda: fleet.replaced(before))
        assert fleet.child_pid("recovery.agent") != agent


def test_controller_killed_workers_keep_running_and_it_catches_up(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0"), station("arm-1")) as fleet:
        before = fleet.wait_ready("arm-0", "arm-1")
        controller = fleet.child_pid("recovery.controller")
        os.kill(controller, signal.SIGSTOP)  # no controller at all while arm-0 fails ...
        os.kill(before["arm-0"].pid, signal.SIGKILL)
        fleet.wait(lambda: len(fleet.events("ready")) == 3)  # ... and still it is replaced
        os.kill(controller, signal.SIGKILL)
        fleet.wait(lambda: fleet.replaced(before["arm-0"]))
        assert fleet.child_pid("recovery.controller") != controller
        assert fleet.of("arm-1").pid == before["arm-1"].pid
        assert fleet.db.execute("SELECT COUNT(*) FROM incidents").fetchone()[0] == 1


def test_crash_loop_backs_off_and_shows_count_and_cause(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", mode="crash"), station("arm-1")) as fleet:
        fleet.wait_ready("arm-1")
        fleet.wait(lambda: fleet.of("arm-0").failures >= 6)
        row = fleet.of("arm-0")
        assert "RuntimeError: no camera at /dev/video7" in row.cause
        assert "arm-0" in progress_line(fleet.status()) and "no camera at /dev/video7" in progress_line(fleet.status())
        launched = [event["time_s"] for event in fleet.events("launched") if event["station"] == "arm-0"]
        gaps = [later - earlier for earlier, later in itertools.pairwise(launched)]
        waits = (0.0, 0.1, 0.2, 0.4, 0.8)  # a busy machine adds to them and takes nothing away
        assert all(gap >= least for gap, least in zip(gaps, waits, strict=False)) and len(gaps) >= len(waits)
        assert fleet.is_ready("arm-1") and fleet.launcher.poll() is None


def test_start_failure_ends_the_run_with_the_traceback_last(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0"), station("learner", Role.TRAINING, "crash")) as fleet:
        assert fleet.launcher.wait(40) == 1
        lines = fleet.stderr().rstrip().splitlines()
        assert lines[-1] == "RuntimeError: no camera at /dev/video7"
        assert any("station learner died 3 times before it was ready" in line for line in lines)
        assert not fleet.left()


def test_restart_limit_of_a_tier_is_fatal_and_loud(tmp_path: Path) -> None:
    limited = dataclasses.replace(FLEET, recovery=dataclasses.replace(FLEET.recovery, training_restarts=1))
    with running(tmp_path, station("learner", Role.TRAINING, "ready_then_crash"), fleet=limited) as fleet:
        assert fleet.launcher.wait(40) == 1
        assert "failed 2 times, its tier allows 1 restarts" in fleet.stderr()
        assert fleet.stderr().rstrip().endswith("RuntimeError: gripper lost")


def test_stop_goes_in_order(tmp_path: Path) -> None:
    roles = [Role.HOME, Role.STORE, Role.INFERENCE, Role.TRAINING, Role.ENVIRONMENT]
    with running(tmp_path, *(station(role.value, role) for role in roles)) as fleet:
        fleet.wait_ready(*(role.value for role in roles))
        (fleet.run_dir / "end").touch()
        assert fleet.launcher.wait(30) == 0
        stopped = [float((fleet.run_dir / f"stopped-{role.value}").read_text()) for role in reversed(roles)]
        assert stopped == sorted(stopped)
        assert not fleet.left()
        assert fleet.db.execute("SELECT COUNT(*) FROM incidents").fetchone()[0] == 0


def test_stop_with_every_worker_blocked_ends_within_the_deadline(tmp_path: Path) -> None:
    stations = [station("arm-0", mode="blocked"), station("learner", Role.TRAINING, "blocked")]
    stations += [station("brain", Role.INFERENCE, "blocked"), station("store", Role.STORE, "blocked")]
    quick = dataclasses.replace(FLEET, stop_deadline_s=3.0)
    with running(tmp_path, *stations, fleet=quick) as fleet:
        fleet.wait_ready("arm-0", "learner", "brain", "store")
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.launcher.wait(3.0 + 4.0) == 0
        assert not fleet.left()


def test_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", mode="blocked")) as fleet:
        fleet.wait_ready("arm-0")
        fleet.launcher.send_signal(signal.SIGINT)
        fleet.wait(lambda: "again to kill" in fleet.stderr())
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.launcher.wait(5) == 1
        assert not fleet.left()


def test_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0"), station("brain", Role.INFERENCE)) as fleet:
        fleet.wait_ready("arm-0", "brain")
        fleet.launcher.kill()
        fleet.wait(lambda: not fleet.left(), 10)


def test_same_folder_resumes_and_one_run_at_a_time(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0")) as fleet:
        first = fleet.wait_ready("arm-0")["arm-0"]
        from cel_jax.recovery import launcher

        with pytest.raises(process.RobotBusy):
            launcher.run(fleet.run_dir, [station("arm-0")], lambda status: True)
        assert fleet.stop() == 0
    with running(tmp_path, station("arm-0")) as fleet:
        fleet.wait(lambda: fleet.replaced(first))
        assert fleet.stop() == 0
        assert fleet.db.execute("SELECT COUNT(*) FROM workers").fetchone()[0] == 2


def test_maintenance_pause_and_a_robot_that_joins(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0", robot=0)) as fleet:
        before = fleet.wait_ready("arm-0")["arm-0"]
        rundb_fleet.set_desired(fleet.db, "arm-0", Desired.PAUSED)
        fleet.wait(lambda: fleet.of("arm-0").state == "paused" and fleet.of("arm-0").note == "paused=True")
        os.kill(before.pid, signal.SIGKILL)  # a paused station stays paused under its next worker
        fleet.wait(lambda: fleet.of("arm-0").pid not in (0, before.pid) and fleet.of("arm-0").note == "paused=True")
        rundb_fleet.set_desired(fleet.db, "arm-0", Desired.OFFLINE)
        fleet.wait(lambda: fleet.of("arm-0").state == "offline")
        with pytest.raises(ValueError, match=r"arm-1"):
            rundb_fleet.set_desired(fleet.db, "arm-0", Desired.RUNNING)
            rundb_fleet.add_station(fleet.db, station("arm-1", robot=0))
        rundb_fleet.add_station(fleet.db, station("arm-1", robot=1))
        fleet.wait_ready("arm-0", "arm-1")


def test_finished_task_is_not_started_again(tmp_path: Path) -> None:
    with running(tmp_path, station("learner", Role.TRAINING, "finish"), station("arm-0", mode="finish")) as fleet:
        fleet.wait(lambda: fleet.in_state("learner", "finished"))
        fleet.wait(lambda: fleet.of("arm-0").failures >= 2)  # a robot's worker has no business to end
        assert fleet.of("learner").failures == 0 and len(fleet.events("fatal")) == 0
        assert sum(event["station"] == "learner" for event in fleet.events("launched")) == 1


def test_recovery_unit_restarts_together(tmp_path: Path) -> None:
    group = [station(f"learner-{i}", Role.TRAINING, unit="learners") for i in range(2)]
    with running(tmp_path, *group, station("brain", Role.INFERENCE)) as fleet:
        before = fleet.wait_ready("learner-0", "learner-1", "brain")
        os.kill(before["learner-1"].pid, signal.SIGKILL)
        fleet.wait(lambda: fleet.replaced(before["learner-0"]) and fleet.replaced(before["learner-1"]))
        assert fleet.of("brain").pid == before["brain"].pid
        assert fleet.db.execute("SELECT COUNT(*) FROM incidents").fetchone()[0] == 1


def test_late_and_concurrent_reports_cause_one_relaunch(tmp_path: Path) -> None:
    with running(tmp_path, *(station(name) for name in ("arm-0", "arm-1", "arm-2"))) as fleet:
        before = fleet.wait_ready("arm-0", "arm-1", "arm-2")
        suspect = ["arm-0", before["arm-0"].worker, "environment"]
        first = rundb_fleet.request_call(fleet.db, "report", ["arm-1", "arm-2"], {"suspect": suspect})
        fleet.wait(lambda: len(rundb_fleet.call_results(fleet.db, first)) == 2 and fleet.replaced(before["arm-0"]))
        after = fleet.of("arm-0")
        late = rundb_fleet.request_call(fleet.db, "report", ["arm-2"], {"suspect": suspect}, call_id="late")
        fleet.wait(lambda: rundb_fleet.call_results(fleet.db, late) and len(fleet.events("report")) == 3)
        responses = sorted(event["response"] for event in fleet.events("report"))
        assert responses == ["accept", "ignore", "ignore"]
        assert fleet.of("arm-0").worker == after.worker
        assert sum(event["station"] == "arm-0" for event in fleet.events("launched")) == 2


def test_call_is_replayed_only_for_the_station_that_failed(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0"), station("arm-1")) as fleet:
        before = fleet.wait_ready("arm-0", "arm-1")
        call = rundb_fleet.request_call(fleet.db, "load_policy", ["arm-0", "arm-1"], {"version": 7}, call_id="load-7")
        fleet.wait(lambda: len(rundb_fleet.call_results(fleet.db, call)) == 2)
        hold = rundb_fleet.request_call(fleet.db, "hold", ["arm-0", "arm-1"])
        fleet.wait(lambda: fleet.of("arm-0").note == fleet.of("arm-1").note == "holding")
        os.kill(before["arm-0"].pid, signal.SIGKILL)
        fleet.wait(lambda: "arm-0" in rundb_fleet.call_results(fleet.db, hold))
        assert rundb_fleet.call_results(fleet.db, hold)["arm-0"][1]["worker"] == fleet.of("arm-0").worker
        assert fleet.of("arm-1").pid == before["arm-1"].pid  # it still holds its part, undisturbed
        os.kill(before["arm-1"].pid, signal.SIGKILL)
        fleet.wait(lambda: len(rundb_fleet.call_results(fleet.db, hold)) == 2)
        done = rundb_fleet.call_results(fleet.db, "load-7")
        assert {value["worker"] for _, value in done.values()} == {each.worker for each in before.values()}
        assert rundb_fleet.open_calls(fleet.db) == []


def test_robot_is_stopped_from_outside_before_its_next_worker(tmp_path: Path) -> None:
    mark = tmp_path / "safe"
    arm = station("arm-0", robot=0, safe_stop=("/bin/sh", "-c", f"date >> {mark}"))
    with running(tmp_path, arm) as fleet:
        before = fleet.wait_ready("arm-0")["arm-0"]
        os.kill(before.pid, signal.SIGKILL)
        fleet.wait(lambda: fleet.replaced(before))
        assert mark.exists()


def test_workers_learn_of_a_replaced_peer_and_of_its_new_epoch(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0"), station("home", Role.HOME)) as fleet:
        before = fleet.wait_ready("arm-0", "home")
        first = rundb_fleet.request_call(fleet.db, "peer", ["home"], {"station": "arm-0"})
        fleet.wait(lambda: rundb_fleet.call_results(fleet.db, first))
        os.kill(before["arm-0"].pid, signal.SIGKILL)
        fleet.wait(lambda: fleet.replaced(before["arm-0"]))
        second = rundb_fleet.request_call(fleet.db, "peer", ["home"], {"station": "arm-0"})
        fleet.wait(lambda: rundb_fleet.call_results(fleet.db, second))
        seen = [rundb_fleet.call_results(fleet.db, call)["home"][1] for call in (first, second)]
        assert [each["peer"] for each in seen] == [[before["arm-0"].worker, 1], [fleet.of("arm-0").worker, 2]]
        assert (fleet.run_dir / "retired-seen-by-home").read_text().split() == [before["arm-0"].worker]


def test_retire_hook_of_the_controller(tmp_path: Path) -> None:
    hooked = dataclasses.replace(FLEET, on_retire="tests.recovery.hooks:note_retired")
    with running(tmp_path, station("arm-0"), fleet=hooked) as fleet:
        before = fleet.wait_ready("arm-0")["arm-0"]
        os.kill(before.pid, signal.SIGKILL)
        fleet.wait(lambda: before.worker in (fleet.run_dir / "logs" / "controller.log").read_text())


def test_callers_error_stops_the_fleet_and_is_raised(tmp_path: Path) -> None:
    with running(tmp_path, station("arm-0")) as fleet:
        fleet.wait_ready("arm-0")
        (fleet.run_dir / "raise").touch()
        assert fleet.launcher.wait(20) == 1
        assert fleet.stderr().rstrip().endswith("ZeroDivisionError: division by zero")
        assert (fleet.run_dir / "stopped-arm-0").exists() and not fleet.left()


def test_controller_that_cannot_start_ends_the_run_with_its_words(tmp_path: Path) -> None:
    broken = dataclasses.replace(FLEET, on_retire="tests.recovery.hooks:no_such_hook")
    with running(tmp_path, station("arm-0"), fleet=broken) as fleet:
        assert fleet.launcher.wait(30) == 1
        assert "controller died 5 times" in fleet.stderr() and "no_such_hook" in fleet.stderr().splitlines()[-1]
        assert not fleet.left()
