"""A worker for the tests: `tiny_worker.py MODE`."""

import subprocess
import sys
import time
from typing import Any

from cel_jax.bus.identity import Identity
from cel_jax.recovery.beat import Command, WorkerContext


def serve(context: WorkerContext) -> None:
    """Ready; answers calls; notes what it sees; stops when asked."""
    context.peers.on_retire(lambda identity: note_retired(context, identity))
    context.ready()
    while not context.stop_event.wait(0.01):
        context.progress(f"paused={context.paused()}")
        if not context.commands().empty():
            command = context.commands().get_nowait()
            context.result(command.id, {"worker": context.identity.worker, **answer(context, command)})
    (context.run_dir / f"stopped-{context.identity.station}").write_text(str(time.monotonic()))


def answer(context: WorkerContext, command: Command) -> dict[str, Any]:
    if command.name == "report":
        context.report("peer lost", "no answer", Identity(*command.args["suspect"]))
    if command.name == "hold" and context.settings.incarnation == 1:  # only the station's first worker
        context.progress("holding")
        time.sleep(600)
    if command.name == "peer":
        peer = context.peers.wait_fresh(command.args["station"], 10.0, ended=context.should_stop)
        return {"peer": [peer.identity.worker, peer.epoch]}
    return dict(command.args)


def note_retired(context: WorkerContext, identity: Identity) -> None:
    with open(context.run_dir / f"retired-seen-by-{context.identity.station}", "a") as file:
        file.write(identity.worker + "\n")


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
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        (context.run_dir / f"child-{context.settings.incarnation}").write_text(str(child.pid))
        serve(context)
    elif mode == "ready_then_crash":
        context.ready()
        context.close()
        raise RuntimeError("gripper lost")
    context.close()


if __name__ == "__main__":
    main(sys.argv[1])
