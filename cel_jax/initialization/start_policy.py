"""Makes the start policy: demonstrations, SFT, the policy's folder and its card."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import jax

from cel_jax.config import InitConfig, RunConfig
from cel_jax.data.demonstrations import DatasetError, Demonstration
from cel_jax.initialization import dataset, sft
from cel_jax.initialization.sources import Demos, Say, load_demos, split
from cel_jax.models.params_io import add_lora, check_finite, on_one_device, restore_openpi
from cel_jax.models.pi0 import Params
from cel_jax.models.presets import Pi0Config, make_config, without_lora
from cel_jax.models.saving import MANIFEST, load_policy, save_policy
from cel_jax.models.tokenizer import ByteTokenizer

CARD = "card.md"
RISE = 1.1  # of the held-out loss over its lowest value, before it is worth a warning
HIGHEST_RELEASED_LR = 1e-4  # a released checkpoint is ruined by the rates that suit small networks


class StartPolicyError(ValueError):
    """A start policy that cannot be made as asked; the message says what to type."""


def check_free(folder: pathlib.Path, overwrite: bool) -> None:
    """Raises `StartPolicyError` where the folder holds something."""
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise StartPolicyError(f"{folder} is not empty; give --overwrite to replace it, or --out=ANOTHER_FOLDER")


def make_start_policy(
    config: RunConfig,
    folder: pathlib.Path,
    say: Say,
    overwrite: bool = False,
    command: str = "",
    demos: Demos | None = None,
) -> pathlib.Path:
    """Trains and saves the policy in `folder`; returns it. Nothing is written before training has ended.

    demos: what to train on; None: as the configuration says.

    Raises `StartPolicyError`, `DatasetError` or `TrainingDiverged`, each saying what to do.
    """
    check_free(folder, overwrite)
    _check_rate(config)
    demos = demos or load_demos(config, say)
    config = _fitted(config, demos, say)
    trained = _train(config, demos, say)
    save_policy(folder, trained.config, trained.params, trained.norm_stats, demos.features, config.policy)
    (folder / CARD).write_text(card(config, demos, trained, command))
    if warning := overfitted(trained.losses):
        say(warning)
    say(f"saved {folder}")
    return folder


def _check_rate(config: RunConfig) -> None:
    preset, rate = config.policy.preset, config.init.peak_lr
    if preset.startswith("pi0") and rate > HIGHEST_RELEASED_LR:
        raise StartPolicyError(
            f"init.peak_lr {rate:g} would ruin a released checkpoint; give --config.init.peak_lr=2.5e-5"
        )


def _fitted(config: RunConfig, demos: Demos, say: Say) -> RunConfig:
    """The configuration with room for the longest prompt. Raises where every episode is shorter than a chunk."""
    longest = max(len(d.state) for d in demos.demonstrations)
    policy = config.policy
    if longest < policy.action_horizon:
        horizon = max(1, longest // policy.actions_per_token) * policy.actions_per_token
        raise StartPolicyError(
            f"the longest demonstration has {longest} frames, a chunk {policy.action_horizon}; give "
            f"--config.policy.action_horizon={horizon} --config.policy.execute_frames={max(1, horizon // 2)}"
        )
    if policy.tokenizer or policy.preset == "pi05":
        return config
    needed = max(len(ByteTokenizer().encode(d.task_prompt, 1 << 20)) for d in demos.demonstrations)
    if needed <= policy.max_token_len:
        return config
    say(f"policy.max_token_len {policy.max_token_len} -> {needed}: the longest prompt of the data")
    return dataclasses.replace(config, policy=dataclasses.replace(policy, max_token_len=needed))


def _train(config: RunConfig, demos: Demos, say: Say) -> sft.Trained:
    training, held_out = split(demos, config.init.held_out_share, config.init.seed)
    say(f"{len(training)} demonstrations to train on, {len(held_out)} held out; {demos.num_frames} frames")
    source = dataset.build(training)
    held = dataset.build(held_out) if held_out else None
    say(f"{source.num_chunks} chunks on the accelerator, {_gigabytes(source):.2f} GB; {config.init.steps} steps")
    return sft.train(
        source,
        held,
        demos.features,
        config.policy,
        config.init,
        lambda losses: say(describe(losses)),
        _checkpoint(config, demos),
    )


def demonstrated(demos: Demos, init: InitConfig) -> list[Demonstration]:
    """The demonstrations that a start policy is trained on, without those that it holds out."""
    return split(demos, init.held_out_share, init.seed)[0]


def _checkpoint(config: RunConfig, demos: Demos) -> Params | None:
    """The weights to start from, of another start policy or of openpi's checkpoint; None where none are named."""
    if not config.policy.checkpoint:
        return None
    network = make_config(config.policy.preset, demos.features, config.policy)
    params = _weights(config.policy.checkpoint, network)
    return add_lora(params, network) if network.lora else params


def _weights(checkpoint: str, network: Pi0Config) -> Params:
    if (pathlib.Path(checkpoint) / MANIFEST).exists():
        return load_policy(checkpoint, "float32").params
    plain = without_lora(network)
    params = restore_openpi(checkpoint, plain, shardings=on_one_device(plain))
    check_finite(params, checkpoint)
    return params


def _gigabytes(source: dataset.ChunkSource) -> float:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(source)) / 1e9


def describe(losses: sft.Losses) -> str:
    """One progress line with the time that is left."""
    parts = [("loss", losses.train), ("held out", losses.held_out)]
    text = ", ".join(f"{name} {value:.4f}" for name, value in parts if value is not None)
    if losses.step == 0:
        return f"step 0/{losses.steps}: {text or 'compiling'}"
    left_s = losses.elapsed_s * (losses.steps / losses.step - 1)
    return f"step {losses.step}/{losses.steps}: {text}; about {left_s:.0f} s left"


def overfitted(losses: Sequence[sft.Losses]) -> str:
    """A warning where the held-out loss has risen well above its lowest value; empty otherwise."""
    held = [(loss.held_out, loss.step) for loss in losses if loss.held_out is not None]
    if not held or held[-1][0] < RISE * min(held)[0]:
        return ""
    lowest, step = min(held)
    return (
        f"warning: the held-out loss was {lowest:.4f} at step {step} and is {held[-1][0]:.4f} now; "
        f"more demonstrations, a lower init.peak_lr or --config.init.steps={step} would overfit less"
    )


def card(config: RunConfig, demos: Demos, trained: sft.Trained, command: str) -> str:
    """What somebody who finds the folder wants to know."""
    init, features, losses = config.init, demos.features, trained.losses[-1]
    held = "none held out" if losses.held_out is None else f"{losses.held_out:.4f}"
    cameras = ", ".join(f"{c.name} {c.height}x{c.width}" for c in features.cameras) or "none (object poses)"
    rows = {
        "command": f"`{command}`",
        "robot": f"{features.robot_type}: {features.state_dim} state, {features.action_dim} action numbers",
        "cameras": cameras,
        "demonstrations": f"{len(demos.demonstrations)} ({demos.num_frames} frames) from {demos.origin}",
        "network": f"{config.policy.preset}, chunks of {config.policy.action_horizon} actions",
        "steps": f"{init.steps} of batch {init.batch_size}, peak rate {init.peak_lr:g}, {losses.elapsed_s:.0f} s",
        "training loss": f"{losses.train:.4f}",
        "held-out loss": held,
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["# Start policy", "", "| | |", "|---|---|", *lines, ""])


def add_to_card(folder: pathlib.Path, text: str) -> None:
    """Appends measured results (a table as text)."""
    with (folder / CARD).open("a") as file:
        file.write(f"\n```\n{text}\n```\n")


__all__ = ["DatasetError", "StartPolicyError", "add_to_card", "make_start_policy"]
