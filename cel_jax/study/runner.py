"""Runs the cells of a study and keeps everything in its run.db; finished rounds and evaluations are not repeated."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator
from pathlib import Path

from cel_jax.config import RunConfig
from cel_jax.evaluation import rundb_evals
from cel_jax.evaluation.compare import run_policy
from cel_jax.evaluation.rollout import Rollout, open_rollout
from cel_jax.evaluation.rollout_pool import num_processes
from cel_jax.evaluation.simulated import MakeSimulated, options_for
from cel_jax.evaluation.trials import RolloutOptions, make_trials
from cel_jax.initialization.sources import Demos, from_expert
from cel_jax.initialization.start_policy import demonstrated, make_start_policy
from cel_jax.models.policy import Policy
from cel_jax.models.saving import MANIFEST, load_policy, save_policy
from cel_jax.study import results
from cel_jax.study.arms import arm
from cel_jax.study.collecting import FirstRound
from cel_jax.study.experience import DemonstrationExperience, Experience, FleetExperience
from cel_jax.study.grid import Cell, configured
from cel_jax.study.lockstep import LockstepArm, Say
from cel_jax.study.stores import DemonstrationStore


class StudyRunner:
    """One study in one folder. Simulator processes are shared by all cells; demonstrations by all cells of a seed."""

    def __init__(self, base: RunConfig, folder: Path, collecting: Rollout, evaluating: Rollout, say: Say) -> None:
        self._base, self._folder, self._say = base, folder, say
        self._collecting, self._evaluating = collecting, evaluating
        self._database = folder / "run.db"
        self._demos = functools.lru_cache(maxsize=1)(self._collect_demos)

    def run(self, cell: Cell) -> None:
        """All rounds of a cell that are not done, and its evaluations."""
        config = arm(cell.arm).prepare(configured(self._base, cell))
        start = self._start_policy(config)
        self._evaluate(config, f"start-seed{cell.seed}", start, 0)
        if self._evaluated(config, cell.folder, config.study.rounds):
            return
        where = self._folder / cell.folder
        runner = LockstepArm(arm(cell.arm), config, start, where, functools.partial(self._experience, config, cell))
        try:
            self._rounds(config, cell, runner)
        finally:
            runner.close()
        final = runner.policy
        save_policy(
            where / "policy", final.config, final.params, final.norm_stats, final.features, config.policy, "float32"
        )

    def _rounds(self, config: RunConfig, cell: Cell, runner: LockstepArm) -> None:
        while runner.rounds_done < config.study.rounds:
            done = runner.run_round()
            results.add_round(self._database, cell, config, done)
            self._say(f"{cell.folder}: {results.describe(done)}")
            every = config.study.eval_every_rounds
            if every and done.version % every == 0:
                self._evaluate(config, cell.folder, runner.policy, done.version)
        self._evaluate(config, cell.folder, runner.policy, runner.rounds_done)

    def _experience(self, config: RunConfig, cell: Cell, lock: threading.Lock) -> Experience:
        kind = arm(cell.arm)
        if not kind.collects:
            taught = demonstrated(self._demos(config.init.seed), config.init)
            return DemonstrationExperience(DemonstrationStore(taught, config.policy.action_horizon))
        features = MakeSimulated(config.task)(config.fleet.first_robot).features
        first = self._first_round(config)
        return FleetExperience(self._folder / cell.folder, config, features, self._collecting, lock, kind.oracle, first)

    def _first_round(self, config: RunConfig) -> FirstRound:
        """Shared by the arms of a seed that collect as many episodes on as many robots."""
        size = f"{config.study.episodes_per_round}-episodes-{config.fleet.robots}-robots"
        folder = self._folder / f"first-round-{size}-seed{config.fleet.seed}"
        first = FirstRound(folder, config, config.policy.checkpoint or f"start-seed{config.init.seed}")
        first.collect(self._collecting, self._start_policy(config))
        return first

    def _collect_demos(self, seed: int) -> Demos:
        config = configured(self._base, Cell("", "demonstrations", seed))
        return from_expert(config, self._say)

    def _start_policy(self, config: RunConfig) -> Policy:
        """This seed's start policy, trained once from its own demonstrations; or the one that is named."""
        if config.policy.checkpoint:
            return load_policy(config.policy.checkpoint, "float32").with_sampling(config.policy)
        folder = self._folder / f"start-seed{config.init.seed}"
        if not (folder / MANIFEST).exists():
            make_start_policy(config, folder, self._say, overwrite=True, demos=self._demos(config.init.seed))
        return load_policy(folder, "float32").with_sampling(config.policy)

    def _evaluated(self, config: RunConfig, name: str, version: int) -> bool:
        if not self._database.exists():
            return False
        rows = rundb_evals.read(self._database, name)
        return sum(row.policy_version == version for row in rows) >= config.eval.robots * config.eval.trials_per_robot

    def _evaluate(self, config: RunConfig, name: str, policy: Policy, version: int) -> None:
        if self._evaluated(config, name, version):
            return
        settings = config.eval
        trials = make_trials(settings.robots, settings.first_robot, settings.trials_per_robot, settings.seed)
        rows = run_policy(self._evaluating, config, name, policy, trials, self._say, version)
        rundb_evals.append(self._database, rows)


@contextlib.contextmanager
def open_runner(base: RunConfig, folder: Path, say: Say) -> Iterator[StudyRunner]:
    """A runner with its simulator processes; two groups, so that the policy thinks while half of the robots move."""
    folder.mkdir(parents=True, exist_ok=True)
    trials = base.eval.robots * base.eval.trials_per_robot
    with (
        open_rollout(
            MakeSimulated(base.task), _options(base, base.study.episodes_per_round, record=True)
        ) as collecting,
        open_rollout(MakeSimulated(base.task), _options(base, trials, record=False)) as evaluating,
    ):
        yield StudyRunner(base, folder, collecting, evaluating, say)


def _options(base: RunConfig, trials: int, record: bool) -> RolloutOptions:
    processes = min(num_processes(RolloutOptions(processes=base.study.processes)), trials)
    slots = min(base.study.slots_per_process, math.ceil(trials / processes))
    return options_for(
        base.task, base.policy.execute_frames, processes=processes, slots_per_process=slots, groups=min(2, slots),
        record=record, episode_prefix="study",
    )  # fmt: skip
