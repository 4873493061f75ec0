"""An inference worker with a stub policy of fixed cost, for ghosts: the whole path of an observation, no accelerator.

python -m cel_jax.workers.inference_stub
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from cel_jax.bus.channels import ActionReply, InferenceFeed, ObservationRequest
from cel_jax.bus.errors import BusError
from cel_jax.recovery.beat import WorkerContext
from cel_jax.robots.ghost import stub_actions
from cel_jax.workers.wiring import HOME, Wiring, load_features

WAIT_S = 0.5


def main() -> None:
    wiring = Wiring.of(WorkerContext.from_env())
    context, bus = wiring.context, wiring.config.bus
    horizon, width = wiring.config.policy.action_horizon, load_features(wiring.run_dir).action_dim
    with wiring.client(HOME) as home:
        feed = InferenceFeed([home])
        context.ready()
        while not context.should_stop():
            batch = feed.fetch(bus.batch_target, bus.batch_timeout_s, WAIT_S)
            context.progress("stub policy")
            if batch:
                time.sleep(wiring.config.ghost.policy_cost_s)  # the accelerator works, this process waits
                serve(feed, batch, horizon, width)
    context.close()


def serve(feed: InferenceFeed, batch: Sequence[ObservationRequest], horizon: int, width: int) -> None:
    """Each observation's answer carries that observation's tag."""
    actions = stub_actions(np.stack([np.asarray(item.arrays["state"]) for item in batch]), horizon, width)
    replies = [ActionReply(item.id, 0, {"actions": row}) for item, row in zip(batch, actions, strict=True)]
    try:
        feed.answer(replies)
    except BusError as error:  # the robots ask again; the home may be on its way back
        print(f"answers not delivered: {error}", flush=True)


if __name__ == "__main__":
    main()
