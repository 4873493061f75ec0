"""From a round's records and reports to training samples: joined, checked, selected, counted."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

from cel_jax.planner.advantages import group_advantages, select_responses
from cel_jax.planner.records import CallRecord, Report, by_episode

Render = Callable[[CallRecord], Sequence[int]]  # messages and tools of a record -> the prompt's ids


class RecordError(ValueError):
    """Records that do not fit the round; the message names the episode and the call."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One recorded request with its weight. logprobs: the rollout's. consistent: 0 where a re-render disagreed."""

    episode: str
    call_index: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    consistent: bool


def round_samples(
    records: Sequence[CallRecord], reports: Sequence[Report], version: int, cap: int, seed: int, render: Render
) -> tuple[list[Sample], dict[str, int]]:
    """The samples of one round and counts of everything that was left out or weighted 0.

    Raises RecordError for a record of another policy version, for calls without a report, and for missing calls.
    """
    check_round(records, reports, version)
    advantages, counts = group_advantages(reports)
    calls = by_episode(records)
    samples: list[Sample] = []
    for episode, advantage in advantages.items():
        usable = [r for r in calls.get(episode, []) if r.response_ids and not r.error]
        chosen = select_responses(episode, len(usable), cap, seed)
        samples += [_sample(usable[i], advantage, render) for i in chosen]
    counts["inconsistent"] = sum(not s.consistent for s in samples)
    counts["samples"] = len(samples)
    return samples, counts


def _sample(record: CallRecord, advantage: float, render: Render) -> Sample:
    consistent = tuple(render(record)) == record.prompt_ids
    return Sample(
        record.episode,
        record.call_index,
        record.prompt_ids,
        record.response_ids,
        record.logprobs,
        advantage,
        consistent,
    )


def check_round(records: Sequence[CallRecord], reports: Sequence[Report], version: int) -> None:
    """Raises RecordError unless every record is of this version, of a reported episode, and none is missing."""
    names = [report.episode for report in reports]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise RecordError(f"episode {twice[0]} was reported twice; every attempt needs a name of its own")
    for record in records:
        where = f"episode {record.episode}, call {record.call_index}"
        if record.policy_version != version:
            raise RecordError(f"{where}: sampled by policy version {record.policy_version}, the round's is {version}")
    valid = {report.episode for report in reports if report.valid}
    for episode, calls in by_episode(records).items():
        if episode not in set(names):
            raise RecordError(f"episode {episode} has {len(calls)} recorded calls but no report from the adapter")
        indices = [call.call_index for call in calls]
        if episode in valid and indices != list(range(len(calls))):
            raise RecordError(f"episode {episode}: calls {indices} recorded; expected 0 to {len(calls) - 1} once each")
