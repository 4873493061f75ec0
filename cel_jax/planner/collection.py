"""Collects episodes of one planner at fixed weights: sampler, batcher, recorder and site put together."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from cel_jax.fert import sharding
from cel_jax.planner.batcher import Batcher
from cel_jax.planner.chat import ChatTemplate
from cel_jax.planner.config import PlannerConfig
from cel_jax.planner.policy import Planner
from cel_jax.planner.recorder import LocalBackend, Recorder
from cel_jax.planner.records import CallRecord, RecordLog, Report, Sampling
from cel_jax.planner.rollouts import Spec, play
from cel_jax.planner.sampler import Sampler
from cel_jax.planner.sites import local_site


class Collector:
    """Keeps the compiled sampler between rounds."""

    def __init__(self, config: PlannerConfig, planner: Planner) -> None:
        self._config, self._slots = config, config.harness.slots
        self.template: ChatTemplate = planner.template
        model = config.model
        self.sampler = Sampler(
            planner.params, planner.config, planner.tokenizer.end_id, model.max_prompt_tokens,
            model.max_response_tokens, model.rollout_dtype, sorted({min(16, self._slots), self._slots}),
            sharding.make_mesh(model.fsdp_devices),
        )  # fmt: skip

    def collect(
        self, specs: Sequence[Spec], version: int, sampling: Sampling, seed: int, path: pathlib.Path | None = None
    ) -> tuple[list[CallRecord], list[Report]]:
        """Plays all specs. The records go to `path` as well, where one is given."""
        log, batcher = RecordLog(path), Batcher(self.sampler, self._slots)
        recorder = Recorder(LocalBackend(self.template, batcher), log, version, sampling, seed)
        try:
            site = local_site(self._config.harness, recorder, batcher)
            reports = play(specs, site, self._slots, self._deadline_s(len(specs)))
        finally:
            batcher.close()
            log.close()
        return log.records(), reports

    def _deadline_s(self, episodes: int) -> float:
        """Every slot's episodes one after another at their limit."""
        return self._config.harness.max_episode_s * -(-episodes // self._slots) + 60.0
