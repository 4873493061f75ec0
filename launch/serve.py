"""Serves a policy to openpi's clients, unchanged, over their websocket protocol; waiting clients share an inference.

    python -m launch.serve --checkpoint=policies/phone_packaging_state
    python -m launch.serve --checkpoint=pi0_base --robot=droid --asset_id=droid --tokenizer=paligemma_tokenizer.model

`--checkpoint` is a policy's folder or openpi's checkpoint (`params/` and `assets/`). GET /healthz answers OK.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys

from absl import flags, logging

from launch import options


def define() -> None:
    """The flags of this entry point."""
    flags.DEFINE_string("checkpoint", "", "a policy's folder, or openpi's checkpoint")
    flags.DEFINE_string("robot", "", "libero, droid or aloha; for openpi's checkpoints")
    flags.DEFINE_string("task", "", "one of the paper's: its cameras' full images are cropped as in training (Table 4)")
    flags.DEFINE_string("asset_id", "", "whose statistics of an openpi checkpoint; default: the only ones")
    flags.DEFINE_string("tokenizer", "", "PaliGemma's sentencepiece file; for openpi's checkpoints")
    flags.DEFINE_integer("action_horizon", 50, "of an openpi checkpoint", lower_bound=1)
    flags.DEFINE_integer("flow_steps", 10, "denoising steps of an openpi checkpoint", lower_bound=1)
    flags.DEFINE_string("default_prompt", "", "for observations without a prompt")
    flags.DEFINE_string("host", "0.0.0.0", "address to listen on")
    flags.DEFINE_integer("port", 8000, "0: a free one", lower_bound=0)
    flags.DEFINE_integer("batch_target", 8, "most clients answered by one inference", lower_bound=1)
    flags.DEFINE_float("batch_timeout_s", 0.005, "how long the first waits for others", lower_bound=0.0)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    if argv[1:] or not flags.FLAGS.checkpoint:
        raise options.OptionError("give --checkpoint=FOLDER: a policy's folder, or openpi's checkpoint")
    from cel_jax.config import PolicyConfig
    from cel_jax.workers.serving.checkpoint import CheckpointError, load

    asked = flags.FLAGS
    settings = PolicyConfig(
        preset="", action_horizon=asked.action_horizon, flow_steps=asked.flow_steps, tokenizer=asked.tokenizer
    )
    print(f"loading {asked.checkpoint}", flush=True)
    try:
        policy, layout = load(asked.checkpoint, asked.robot, asked.asset_id, settings)
    except (CheckpointError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    asyncio.run(_serve(policy, dataclasses.replace(layout, task=asked.task)))
    return 0


async def _serve(policy, layout) -> None:  # type: ignore[no-untyped-def]
    """Until SIGINT or SIGTERM."""
    from cel_jax.workers.inference import batch_sizes
    from cel_jax.workers.serving.batching import Batcher
    from cel_jax.workers.serving.server import PolicyServer

    asked = flags.FLAGS
    sizes = batch_sizes(asked.batch_target)
    print(f"compiling for batches of {sizes}", flush=True)
    policy.warm(sizes, asked.default_prompt)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    batcher = Batcher(policy, asked.batch_target, asked.batch_timeout_s)
    metadata = {"robot": policy.features.robot_type, "action_horizon": policy.config.action_horizon}
    server = PolicyServer(batcher, layout, policy.features, metadata, asked.default_prompt)
    await server.run(asked.host, asked.port, stop, lambda port: print(f"serving on port {port}", flush=True))


def cli() -> None:
    options.run(main, define)


if __name__ == "__main__":
    cli()
