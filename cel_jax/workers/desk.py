"""The desk of a run whose episodes a person labels. `python -m cel_jax.workers.desk`

Stations ask it for orders; the operator's page (`launch.console`) brings labels, starts and stops. Over TCP both prove
their role by their CURVE key.
"""

from __future__ import annotations

from cel_jax.bus.deferred import Deferred
from cel_jax.bus.message import Limits, Request
from cel_jax.bus.server import Handler
from cel_jax.console.desk import DESK
from cel_jax.console.hub import OPERATIONS, ROLES, Hub
from cel_jax.recovery import rundb
from cel_jax.recovery.beat import WorkerContext
from cel_jax.workers.jobs import JobQueue
from cel_jax.workers.wiring import Wiring

TICK_S = 0.05
LIMITS = Limits(header_bytes=1 << 17, buffers=0, total_bytes=1 << 17)


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context, db = wiring.context, rundb.open_db(wiring.run_dir)
    hub, jobs = Hub(db, wiring.config.fleet.label_deadline_s), JobQueue()
    with wiring.server(DESK, handlers(hub, jobs), wiring.server_curve(DESK, ROLES), limits=LIMITS):
        context.ready()
        while not context.should_stop():
            jobs.run_for(TICK_S)
            hub.tick()
            context.progress(f"{len(hub.states)} episodes wait")
    db.close()
    context.close()


def handlers(hub: Hub, jobs: JobQueue) -> dict[str, Handler]:
    """The desk's operations, all of them in the worker's one loop."""

    def handle(request: Request) -> Deferred:
        deferred = Deferred()
        jobs.put(lambda: hub.serve(request, deferred))
        return deferred

    return dict.fromkeys(("report", *OPERATIONS), handle)


if __name__ == "__main__":
    main()
