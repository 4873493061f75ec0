"""A worker for the tests: `tiny_worker.py MODE`."""

import sys
import time
from pathlib import Path

from cel_jax.bus.identity import Identity
from cel_jax.recovery.beat import WorkerContext


def serve(context: WorkerContext) -> None:
    """Ready; answers calls; notes what it sees; stops when asked."""
    context.ready()
    while not context.stop_event.wait(0.01):
        context.progress(f"paused={context.paused()}")
        if context.commands().empty():
            continue
        command = context.commands().get_nowait()
        if command.name == "report":
            context.report("peer lost", "no answer", Identity(*command.args["suspect"]))
        if command.name == "hold":  # dies in the middle of a call, but only as the first worker of its station
            if context.settings.incarnation == 1:
                time.sleep(600)
        context.result(command.id, {"worker": context.identity.worker, **command.args})
    (context.run_dir / f"stopped-{context.identity.station}").write_text(str(time.monotonic()))


def main(mode: str) -> None:
    if mode == "crash":
        raise RuntimeError("no camera at /dev/video7")
    context = WorkerContext.from_env()
    if mode == "serve":
        serve(context)
    elif mode == "blocked":
        context.ready()
        time.sleep(600)
    elif mode == "stalled":  # beats go on, the main loop does not
        context.ready()
        context.progress()
        time.sleep(600)
    elif mode == "finish":
        context.ready()
    elif mode == "parent":  # leaves a detached child behind
        import subprocess

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        (context.run_dir / f"child-{context.settings.incarnation}").write_text(str(child.pid))
        serve(context)
    elif mode == "ready_then_crash":
        context.ready()
        (Path(context.run_dir) / "was-ready").touch()
        raise RuntimeError("gripper lost")
    context.close()


if __name__ == "__main__":
    main(sys.argv[1])
