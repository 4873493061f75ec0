"""The supervised start: demonstrations, target turns, steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import jax

from cel_jax.fert import sharding, trainer
from cel_jax.planner import decoder
from cel_jax.planner.batches import make_batch, rows_of
from cel_jax.planner.config import PlannerConfig
from cel_jax.planner.demonstrations import Demonstration, corpus, demonstrate, training_specs
from cel_jax.planner.policy import Planner
from cel_jax.planner.pretrained.load import load_pretrained
from cel_jax.planner.rewriting import judge_for, rule_rewriter
from cel_jax.planner.sft_data import TargetMaker, TargetTurn
from cel_jax.planner.sites import make_table
from cel_jax.planner.tool_harness import Limits, ToolHarness
from cel_jax.planner.training import Say, batch_order, sft_loss, sft_train_config, sft_weight
from cel_jax.planner.words import WordTokenizer, make_vocabulary

REPORT_STEPS = 50


def teacher_episodes(config: PlannerConfig) -> list[Demonstration]:
    """The teacher on training states. Raises ValueError for a harness that it does not know."""
    if config.harness.kind != "tools":
        raise ValueError("the scripted teacher plays harness.kind=tools only")
    table = make_table(config.harness)
    specs = training_specs(table.tasks(), config.sft.teacher_episodes, config.seed)
    return [demonstrate(table, spec, _limits(config), config.harness.keep_exchanges, config.seed) for spec in specs]


def _limits(config: PlannerConfig) -> Limits:
    return Limits(config.harness.max_turns, config.harness.max_episode_s)


def base_planner(config: PlannerConfig, demonstrations: Sequence[Demonstration]) -> Planner:
    """The untrained model: a published checkpoint, or random weights with a vocabulary of the texts.

    Raises as `load_pretrained`.
    """
    if config.model.checkpoint:
        return load_pretrained(config.model.checkpoint)
    tokenizer = WordTokenizer(make_vocabulary(corpus(demonstrations)))
    sizes = decoder.preset(config.model.preset, tokenizer.vocab_size)
    return Planner(decoder.init_params(sizes, jax.random.key(config.seed)), sizes, tokenizer)


def target_turns(
    config: PlannerConfig, planner: Planner, demonstrations: Sequence[Demonstration], say: Say
) -> list[TargetTurn]:
    """All target turns, with a line about what became of the teacher's turns."""
    table = make_table(config.harness)  # replays run one after another
    harness = lambda: ToolHarness(table, _limits(config), config.harness.keep_exchanges)  # noqa: E731
    judge = judge_for(config.sft.judge_url, config.sft.judge_deadline_s)
    maker = TargetMaker(config.sft.mode, rule_rewriter, judge, planner.template, harness)
    targets = maker.targets(demonstrations)
    say("teacher: " + ", ".join(f"{name} {count}" for name, count in sorted(maker.counts.items())))
    return fitting(targets, config, say)


def fitting(targets: Sequence[TargetTurn], config: PlannerConfig, say: Say) -> list[TargetTurn]:
    """Turns that the context holds; the rest is counted aloud."""
    model = config.model
    kept = [
        t
        for t in targets
        if len(t.prompt_ids) <= model.max_prompt_tokens and len(t.response_ids) <= model.max_response_tokens
    ]
    if len(kept) < len(targets):
        say(f"{len(targets) - len(kept)} of {len(targets)} target turns do not fit the context; left out")
    return kept


def train(config: PlannerConfig, planner: Planner, targets: Sequence[TargetTurn], say: Say) -> Planner:
    """`sft.steps` steps; the trained planner, with parameters on the host."""
    model, mesh = config.model, sharding.make_mesh(config.model.fsdp_devices)
    settings = sft_train_config(config.sft, config.seed)
    optimizer = trainer.make_optimizer(settings)
    state = trainer.create_state(planner.params, optimizer, settings, mesh, jax.random.PRNGKey(config.seed))
    loss = sft_loss(planner.config, model.train_dtype, remat=planner.config.width > 256)
    step = trainer.make_train_step(loss, optimizer, mesh, settings)
    data = make_batch(
        [t.prompt_ids for t in targets], [t.response_ids for t in targets], model.max_prompt_tokens,
        model.max_response_tokens,
    )  # fmt: skip
    data["weight"] = sft_weight(data)
    start = time.monotonic()
    for number, rows in enumerate(batch_order(len(targets), settings.batch_size, config.sft.steps, config.seed), 1):
        state, metrics = step(state, sharding.put_batch(rows_of(data, rows), mesh))
        if number % REPORT_STEPS == 0 or number == config.sft.steps:
            say(f"sft step {number}: loss {float(metrics['loss']):.4f}, {time.monotonic() - start:.0f} s")
    return dataclasses.replace(planner, params=jax.device_get(state.params), version=planner.version + 1)
