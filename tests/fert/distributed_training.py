"""Trains the toy or the tiny pi0 on 8 devices in one process or two, or on one; process 0 writes what came out.

python -m tests.fert.distributed_training toy|pi0 OUT NUM_PROCESSES PROCESS PORT
"""

from __future__ import annotations

import dataclasses
import os
import sys


def main(network: str, out: str, processes: int, process: int, port: int) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, initialization_timeout=60)
    import numpy as np
    from jax.experimental import multihost_utils

    from cel_jax.fert import sharding, trainer
    from tests.fert import toy

    loss, params, batches, size = toy_problem() if network == "toy" else pi0_problem()
    config = dataclasses.replace(toy.CONFIG, micro_batch_size=size // 2)
    mesh = sharding.make_mesh(2 if len(jax.devices()) > 1 else 1)
    optimizer = trainer.make_optimizer(config)
    params = jax.tree.map(np.asarray, params)
    state = trainer.create_state(params, optimizer, config, mesh, np.asarray([0, 1], np.uint32))
    step = trainer.make_train_step(loss, optimizer, mesh, config)
    share = slice(process * size // processes, (process + 1) * size // processes)
    for batch in batches:
        mine = jax.tree.map(lambda rows: np.asarray(rows)[share], batch)
        state, metrics = step(state, sharding.put_batch(mine, mesh))
    whole = multihost_utils.process_allgather(state.params, tiled=True) if processes > 1 else state.params
    if process == 0:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(whole)]
        cut = sum(leaf.sharding.shard_shape(leaf.shape) != leaf.shape for leaf in jax.tree.leaves(state.params))
        np.savez(out, *leaves, loss=np.asarray(metrics["loss"]), cut=cut, devices=len(jax.devices()))


def toy_problem():  # type: ignore[no-untyped-def]
    from tests.fert import toy

    return toy.loss, toy.params(), [toy.batch(seed) for seed in range(3)], 32


def pi0_problem():  # type: ignore[no-untyped-def]
    """The tiny pi0 with large enough widths that fsdp cuts them."""
    import jax
    import numpy as np

    from cel_jax.fert.batches import policy_loss
    from cel_jax.models.inputs import ModelInputs
    from cel_jax.models.pi0 import flow_loss
    from cel_jax.models.presets import GemmaConfig
    from tests.models.robots import noisy_params, random_inputs, tiny

    wide = {"paligemma": GemmaConfig(64, 2, 256, 4, 2, 16), "action_expert": GemmaConfig(32, 2, 64, 4, 2, 16)}
    config = dataclasses.replace(tiny("images"), **wide)  # type: ignore[arg-type]
    inputs = random_inputs(config, 16)
    batch = {name: getattr(inputs, name) for name in ("images", "tokens", "token_mask", "state")}
    shape = (16, config.action_horizon, config.action_dim)
    batch["actions"] = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    batch["action_mask"] = np.ones(shape[:2], bool)
    return policy_loss(flow_loss, ModelInputs, config), noisy_params(config), [jax.device_get(batch)], 16


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6]))
