"""Invariants 5, 6 and 8 on joined records: consistency, versions, validity."""

from __future__ import annotations

import dataclasses

import pytest

from cel_jax.planner.records import CallRecord, RecordLog, Report, Sampling, read_records
from cel_jax.planner.samples import RecordError, round_samples


def record(episode: str, call: int, version: int = 4, prompt: tuple[int, ...] = (1, 2, 3)) -> CallRecord:
    messages = ({"role": "user", "content": f"{episode} {call}"},)
    return CallRecord(episode, call, version, messages, (), prompt, (5, 6), (-0.5, -0.25), Sampling(), "stop", 0.0, 1.0)


REPORTS = [Report("a", "t", 11, 0, 1.0, True), Report("b", "t", 11, 1, 0.0, True)]


def _same(r: CallRecord) -> tuple[int, ...]:
    return (1, 2, 3)


def test_every_response_of_an_episode_has_its_advantage() -> None:
    records = [record("a", 0), record("a", 1), record("b", 0)]
    samples, counts = round_samples(records, REPORTS, 4, 16, 0, _same)
    assert [(s.episode, s.advantage) for s in samples] == [("a", 1.0), ("a", 1.0), ("b", -1.0)]
    assert counts["samples"] == 3 and counts["inconsistent"] == 0


def test_one_differing_prompt_token_gives_weight_zero_and_is_counted() -> None:
    samples, counts = round_samples([record("a", 0), record("b", 0, prompt=(1, 2, 4))], REPORTS, 4, 16, 0, _same)
    assert [s.consistent for s in samples] == [True, False] and counts["inconsistent"] == 1


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(RecordError, match="episode b, call 0: sampled by policy version 3, the round's is 4"):
        round_samples([record("a", 0), record("b", 0, version=3)], REPORTS, 4, 16, 0, _same)


def test_an_invalid_episode_gives_no_sample_and_a_failure_does() -> None:
    reports = [*REPORTS, Report("c", "t", 11, 2, 1.0, False)]
    samples, _ = round_samples([record("a", 0), record("b", 0), record("c", 0)], reports, 4, 16, 0, _same)
    assert {s.episode for s in samples} == {"a", "b"}


def test_the_cap_holds_for_each_episode() -> None:
    records = [record(e, i) for e in "ab" for i in range(30)]
    samples, _ = round_samples(records, REPORTS, 4, 16, 0, _same)
    assert [sum(s.episode == e for s in samples) for e in "ab"] == [16, 16]


def test_calls_without_report_missing_calls_and_double_reports_are_refused() -> None:
    with pytest.raises(RecordError, match="no report from the adapter"):
        round_samples([record("z", 0)], REPORTS, 4, 16, 0, _same)
    with pytest.raises(RecordError, match=r"calls \[0, 2\] recorded"):
        round_samples([record("a", 0), record("a", 2)], REPORTS, 4, 16, 0, _same)
    with pytest.raises(RecordError, match="reported twice"):
        round_samples([], [REPORTS[0], REPORTS[0]], 4, 16, 0, _same)


def test_records_come_back_from_disk_and_a_cut_file_is_named(tmp_path) -> None:
    path = tmp_path / "records.jsonl"
    log = RecordLog(path)
    log.append(record("a", 0))
    log.append(record("a", 1))
    log.close()
    assert read_records(path) == [record("a", 0), record("a", 1)]
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match="line 2: not a call record"):
        read_records(path)


def test_a_record_checks_itself() -> None:
    with pytest.raises(ValueError, match="2 response ids but 1 log-probabilities"):
        dataclasses.replace(record("a", 0), logprobs=(-0.1,))
    with pytest.raises(ValueError, match="finite and at most 0"):
        dataclasses.replace(record("a", 0), logprobs=(-0.1, 0.5))
    with pytest.raises(ValueError, match="finish reason 'done'"):
        dataclasses.replace(record("a", 0), finish_reason="done")
    with pytest.raises(ValueError, match="temperature >= 0"):
        Sampling(temperature=-1.0)
