"""A round's episodes from a lock-step fleet, and the first round that the arms of a seed share.

All collecting arms begin with the same start policy: their first round is one draw from one distribution. It is
collected once, which saves its cost in every further arm and leaves them to differ by what they learn from it.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cel_jax.config import RunConfig
from cel_jax.data.episode_codec import encode_episode
from cel_jax.evaluation.rollout import Rollout
from cel_jax.evaluation.scene_policy import scene_policy
from cel_jax.evaluation.trials import Trial, TrialResult
from cel_jax.models.policy import Policy

SEEDS_APART = 1_000_000  # scenes of different seeds of a study never meet
DONE = "done.json"


@dataclasses.dataclass(frozen=True)
class Collected:
    """One round's episodes. failures: how many ended in each stage. steps: control steps of all of them."""

    episodes: int = 0
    successes: int = 0
    steps: int = 0
    failures: dict[int, int] = dataclasses.field(default_factory=dict)


def collect_round(
    rollout: Rollout, config: RunConfig, policy: Policy, version: int, number: int, book: Callable[[TrialResult], None]
) -> Collected:
    """Runs round `number`; `book` gets every result with its episode. Raises ValueError where none is recorded."""
    results: list[TrialResult] = []

    def finished(result: TrialResult) -> None:
        if result.episode is None:
            raise ValueError(f"{result.trial}: the rollout of a study must record its episodes")
        book(result)
        results.append(dataclasses.replace(result, episode=None))

    rollout.run(scene_policy(policy, config.task.prompt), _trials(config, number), finished, lambda: version)
    failed = collections.Counter(result.stage for result in results if not result.success)
    successes = sum(result.success for result in results)
    return Collected(len(results), successes, sum(result.steps for result in results), dict(failed))


def _trials(config: RunConfig, number: int) -> Iterator[Trial]:
    """Each robot in turn gets the next scene. An iterator, so that results need not be kept in order."""
    fleet, count = config.fleet, config.study.episodes_per_round
    first = fleet.seed * SEEDS_APART + number * count
    return iter([Trial(fleet.first_robot + i % fleet.robots, first + i) for i in range(count)])


class FirstRound:
    """The folder of the shared episodes; complete once its manifest is there."""

    def __init__(self, folder: Path, config: RunConfig, start: str) -> None:
        """start: names the start policy. Raises ValueError where the folder was filled under other settings."""
        self._folder, self._config = folder, config
        self._settings = _settings(config, start)
        if self.complete:
            self._check()

    @property
    def complete(self) -> bool:
        return (self._folder / DONE).exists()

    @property
    def collected(self) -> Collected:
        found = self._manifest()["collected"]
        return Collected(**{**found, "failures": {int(stage): n for stage, n in found["failures"].items()}})

    @property
    def files(self) -> list[Path]:
        """The encoded episodes, in the order of their scenes."""
        return sorted(self._folder.glob("*.cele"))

    def collect(self, rollout: Rollout, policy: Policy) -> None:
        """Nothing where it is complete; a part that an interruption left is replaced."""
        if self.complete:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        collected = collect_round(rollout, self._config, policy, 0, 0, self._write)
        manifest = {"settings": self._settings, "collected": dataclasses.asdict(collected)}
        (self._folder / DONE).write_text(json.dumps(manifest))

    def _write(self, result: TrialResult) -> None:
        assert result.episode is not None
        (self._folder / f"{result.seed:012d}.cele").write_bytes(encode_episode(result.episode))

    def _manifest(self) -> dict[str, Any]:
        return json.loads((self._folder / DONE).read_text())

    def _check(self) -> None:
        kept = self._manifest()["settings"]
        changed = sorted(name for name in self._settings if kept.get(name) != self._settings[name])
        if changed:
            raise ValueError(
                f"{self._folder}: its episodes were collected with another {', '.join(changed)}; give a new --study, "
                "or delete the folder to collect them again"
            )


def _settings(config: RunConfig, start: str) -> dict[str, Any]:
    """All that the episodes depend on."""
    fleet, study = config.fleet, config.study
    found = {
        "start": start,
        "task": dataclasses.asdict(config.task),
        "policy": dataclasses.asdict(config.policy),
        "fleet": [fleet.robots, fleet.first_robot, fleet.seed],
        "episodes": study.episodes_per_round,
    }
    return json.loads(json.dumps(found))
