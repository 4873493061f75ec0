"""RL in rounds at fixed weights: collect, check, weigh, update; a checkpoint after every round."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from cel_jax.fert import sharding, trainer
from cel_jax.fert.checkpoints import CheckpointStore
from cel_jax.fert.manifest import Identity
from cel_jax.planner.batches import Batch, padded_rows, rl_batch
from cel_jax.planner.collection import Collector
from cel_jax.planner.config import PlannerConfig, config_hash
from cel_jax.planner.losses import PpoParams
from cel_jax.planner.policy import Planner
from cel_jax.planner.records import CallRecord, Report, Sampling
from cel_jax.planner.samples import Sample, round_samples
from cel_jax.planner.sites import make_table
from cel_jax.planner.splits import training_groups
from cel_jax.planner.training import Say, Scorer, one_pass, rl_loss, rl_train_config, rl_weight


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """What one round did."""

    round: int
    success: float
    counts: dict[str, int]
    metrics: dict[str, float]


class RlRun:
    """A resumable run. `folder` keeps its checkpoints; a run that finds some goes on after them."""

    def __init__(self, config: PlannerConfig, planner: Planner, folder: pathlib.Path, say: Say) -> None:
        self._config, self._planner, self._say = config, planner, say
        self._mesh = sharding.make_mesh(config.model.fsdp_devices)
        self._settings = rl_train_config(config.rl, config.seed)
        self._optimizer = trainer.make_optimizer(self._settings)
        ppo = PpoParams(config.rl.weight_cap, config.rl.clip_low, config.rl.clip_high, config.rl.dual_clip)
        remat = planner.config.width > 256
        loss = rl_loss(planner.config, config.model.train_dtype, ppo, remat)
        self._step = trainer.make_train_step(loss, self._optimizer, self._mesh, self._settings)
        self._score = Scorer(planner.config, config.model.train_dtype, self._mesh)
        self._collector = Collector(config, planner)
        self.history: list[RoundResult] = []
        self._store = CheckpointStore(folder, self._identity(), config.rl.keep_checkpoints)
        self._state, self.next_round = self._start()

    def _identity(self) -> Identity:
        """Rounds may be added to a run; everything else must stay."""
        fixed = dataclasses.replace(self._config, rl=dataclasses.replace(self._config.rl, rounds=0))
        return Identity(self._config.name, self._planner.model_name, config_hash(fixed))

    def _start(self) -> tuple[trainer.TrainState, int]:
        state = trainer.create_state(
            self._planner.params, self._optimizer, self._settings, self._mesh, jax.random.PRNGKey(self._config.seed)
        )
        if self._store.latest() is None:
            return state, 0
        restored = self._store.restore(state)
        self.history = [RoundResult(**entry) for entry in restored.extras["history"]]
        next_round = int(restored.extras["next_round"])
        self._say(f"rl: resumed after round {next_round - 1}, step {restored.step}")
        return restored.state, next_round

    def run(self) -> Planner:
        """All rounds that are left."""
        while self.next_round < self._config.rl.rounds:
            self.history.append(self._round(self.next_round))
            self.next_round += 1
            extras = {"history": [dataclasses.asdict(r) for r in self.history], "next_round": self.next_round}
            self._store.save(self._state, self.next_round, extras)
        self._store.close()
        return self.planner()

    def planner(self) -> Planner:
        """The present weights, on the host."""
        version = self._planner.version + self.next_round
        return dataclasses.replace(self._planner, params=jax.device_get(self._state.params), version=version)

    def _round(self, number: int) -> RoundResult:
        start = time.monotonic()
        records, reports = self._collect(number)
        collected_s = time.monotonic() - start
        rl, version = self._config.rl, self._planner.version + number
        render = lambda r: self._collector.template.prompt_ids(r.messages, r.tools)  # noqa: E731
        seed = self._config.seed * 1000 + number
        samples, counts = round_samples(records, reports, version, rl.responses_per_episode, seed, render)
        counts["ended early"] = sum(r.finish_reason == "context_overflow" for r in records)
        metrics = self._update(samples, seed) if samples else {}
        metrics |= {"collect_s": collected_s, "update_s": time.monotonic() - start - collected_s}
        valid = [report.reward for report in reports if report.valid]
        result = RoundResult(number, float(np.mean(valid)) if valid else 0.0, counts, metrics)
        self._say(describe(result))
        return result

    def _collect(self, number: int) -> tuple[list[CallRecord], list[Report]]:
        """The round's episodes under the present weights at temperature 1."""
        rl, seed = self._config.rl, self._config.seed
        self._collector.sampler.set_params(self._state.params)
        specs = training_groups(make_table(self._config.harness).tasks(), rl.groups, rl.attempts, seed, number)
        sampling = Sampling(max_tokens=self._config.model.max_response_tokens)
        return self._collector.collect(specs, self._planner.version + number, sampling, seed * 1000 + number)

    def _update(self, samples: Sequence[Sample], seed: int) -> dict[str, float]:
        """One pass over the samples; the old log-probabilities are computed before the first step."""
        rl, model = self._config.rl, self._config.model
        batch = rl_batch(samples, model.max_prompt_tokens, model.max_response_tokens)
        batch["train_logprob"] = self._score(self._state.params, batch)
        batch["weight"] = rl_weight(batch, rl.normalizer)
        found: dict[str, list[float]] = collections.defaultdict(list)
        for rows in one_pass(len(samples), rl.batch_size, seed):
            part = padded_rows(batch, rows, rl.batch_size)
            part["weight"] = part["weight"] * (part["mask"].sum(-1) > 0)
            self._state, metrics = self._step(self._state, sharding.put_batch(part, self._mesh))
            for name in ("loss", "grad_norm"):
                found[name].append(float(metrics[name]))
        return {name: float(np.mean(values)) for name, values in found.items()} | mismatch(batch, rl.weight_cap)


def mismatch(batch: Batch, cap: float) -> dict[str, float]:
    """How far rollout and training backend are apart, over response tokens of consistent samples."""
    inside = (batch["mask"] > 0) & (batch["consistent"][:, None] > 0)
    if not inside.any():
        return {}
    gap = (batch["train_logprob"] - batch["rollout_logprob"])[inside]
    ratio = np.exp(np.minimum(gap, np.log(cap)))
    return {
        "logprob_gap_max": float(np.abs(gap).max()),
        "weight_mean": float(ratio.mean()),
        "weight_std": float(ratio.std()),
        "weight_capped": float((gap > np.log(cap)).mean()),
    }


def describe(result: RoundResult) -> str:
    """One line."""
    numbers: dict[str, Any] = {k: f"{v:.3g}" for k, v in result.metrics.items()}
    counts = ", ".join(f"{name} {count}" for name, count in result.counts.items())
    metrics = ", ".join(f"{name} {value}" for name, value in numbers.items())
    return f"rl round {result.round}: success {100 * result.success:.1f} %; {counts}; {metrics}"
