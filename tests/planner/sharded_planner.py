"""Run by test_planner_sharding: samples and trains with a small checkpoint on this process's devices, writes arrays.

python -m tests.planner.sharded_planner CHECKPOINT OUT FSDP_DEVICES
"""

from __future__ import annotations

import pathlib
import sys

import jax
import numpy as np

from cel_jax.fert import sharding, trainer
from cel_jax.planner.batches import make_batch
from cel_jax.planner.config import SftConfig
from cel_jax.planner.policy import Planner
from cel_jax.planner.pretrained.load import load_pretrained
from cel_jax.planner.records import Sampling
from cel_jax.planner.sampler import Sampler
from cel_jax.planner.training import Scorer, sft_loss, sft_train_config, sft_weight

PROMPT, RESPONSE, ROWS = 64, 12, 8
SETTINGS = Sampling(temperature=0.8, top_p=0.9, top_k=50)


def main(checkpoint: str, out: pathlib.Path, fsdp_devices: int) -> None:
    planner = load_pretrained(checkpoint)
    mesh = sharding.make_mesh(fsdp_devices)
    prompts = [list(range(10, 15 + 6 * row)) for row in range(ROWS)]
    sampler = Sampler(planner.params, planner.config, planner.tokenizer.end_id, PROMPT, RESPONSE, mesh=mesh)
    found = sampler.sample(prompts, [SETTINGS] * ROWS, list(range(ROWS)))
    batch = make_batch(prompts, [g.ids for g in found], PROMPT, RESPONSE)
    logprobs = np.zeros_like(batch["mask"])
    for row, generation in enumerate(found):
        logprobs[row, : len(generation.ids)] = generation.logprobs
    scores = Scorer(planner.config, "float32", mesh)(sampler.params, batch)
    table = sampler.params["embedding"]
    cut = table.size // table.addressable_shards[0].data.size
    trained = train(planner, mesh, batch)
    arrays = {"targets": batch["targets"], "logprobs": logprobs, "scores": scores, "cut": np.array(cut)}
    np.savez(out, devices=np.array(mesh.size), **arrays, **trained)


def train(planner: Planner, mesh: jax.sharding.Mesh, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Two supervised steps."""
    settings = sft_train_config(SftConfig(steps=4, batch_size=ROWS, peak_lr=1e-3, warmup_steps=1), seed=0)
    optimizer = trainer.make_optimizer(settings)
    state = trainer.create_state(planner.params, optimizer, settings, mesh, jax.random.PRNGKey(0))
    step = trainer.make_train_step(sft_loss(planner.config, "float32", remat=True), optimizer, mesh, settings)
    for _ in range(2):
        state, metrics = step(state, sharding.put_batch(batch | {"weight": sft_weight(batch)}, mesh))
    params = jax.device_get(state.params)
    return {"loss": np.asarray(metrics["loss"]), "q": params["layers"]["q"], "embedding": params["embedding"]}


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]))
