import itertools
from collections.abc import Callable

import numpy as np
import pytest

from cel_jax.data.episode import Outcome, Source
from cel_jax.data.images import decode_jpeg
from cel_jax.evaluation.rollout import open_rollout, run_demonstrations, run_trials
from cel_jax.evaluation.rollout_wire import pack, unpack
from cel_jax.evaluation.trials import ObservationBatch, RolloutError, RolloutOptions, Trial, TrialQueue, make_trials
from tests.evaluation import fake_robot as fake


def _options(**more: object) -> RolloutOptions:
    defaults: dict[str, object] = {"execute_frames": 5, "processes": 2, "slots_per_process": 2, "record": False}
    return RolloutOptions(**(defaults | more))  # type: ignore[arg-type]


def test_every_trial_once_in_order_with_a_fixed_batch() -> None:
    sizes: list[tuple[int, int]] = []

    def policy(batch: ObservationBatch) -> np.ndarray:
        sizes.append((len(batch.valid), int(batch.valid.sum())))
        return fake.solve(batch)

    trials = make_trials(robots=2, first_robot=9000, trials_per_robot=5, seed=100)
    results = run_trials(policy, fake.make_blind, trials, _options())
    assert [result.trial for result in results] == trials
    assert [result.outcome is Outcome.SUCCESS for result in results] == [trial.seed % 2 == 0 for trial in trials]
    assert {result.robot_id for result in results[:5]} == {"fake-9000"}
    assert {result.reason for result in results} == {"reached", "too slow"}
    assert {size for size, _ in sizes} == {4} and min(live for _, live in sizes) < 4  # padded at the end


def test_scenes_do_not_depend_on_processes_slots_or_groups() -> None:
    trials = make_trials(3, 1, 4, 0)
    settings = [(1, 1, 1), (2, 2, 1), (2, 4, 2)]
    runs = [
        run_trials(fake.solve, fake.make_blind, trials, _options(processes=p, slots_per_process=s, groups=g))
        for p, s, g in settings
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len({result.steps for result in runs[0]}) > 3


def test_recorded_episodes_are_whole_and_hold_what_was_executed() -> None:
    options = _options(record=True, image_stride_frames=3, task="t", prompt="Go.", episode_prefix="e")
    seen: list[np.ndarray] = []

    def policy(batch: ObservationBatch) -> np.ndarray:
        seen.append(batch.images["top"][0])
        return fake.solve(batch)

    with open_rollout(fake.make_seeing, options) as rollout:
        (result,) = rollout.run(policy, [Trial(5, 8)], policy_version=itertools.count(10).__next__)
    episode = result.episode
    assert episode is not None and episode.success and episode.num_frames == result.steps
    assert (episode.header.id, episode.header.prompt, episode.header.robot_id) == ("e-fake-5-8", "Go.", "fake-5")
    np.testing.assert_array_equal(episode.state[1:], episode.action[:-1])  # not the last state over and over
    np.testing.assert_array_equal(episode.state[0], 0)
    frames = np.arange(result.steps)
    np.testing.assert_array_equal(episode.image_steps, frames[(frames % 3 == 0) | (frames % 5 == 0)])
    np.testing.assert_array_equal(episode.policy_version, 11 + frames // 5)  # version 10 was read at the start
    assert (episode.source == Source.POLICY).all() and episode.stage.tolist() == (frames // 10).tolist()
    stored = dict(zip(episode.image_steps.tolist(), episode.images["top"], strict=True))
    for i, image in enumerate(seen):
        np.testing.assert_array_equal(decode_jpeg(stored[5 * i]), image)  # the policy saw the stored bytes
    for step, data in stored.items():
        assert np.abs(decode_jpeg(data).astype(int) - fake.picture(step, 16)).mean() < 40, step  # others: 85
    assert episode.objects is not None and episode.objects.shape == (result.steps, 1, 2)


def test_state_mode_has_no_images() -> None:
    (result,) = run_trials(fake.solve, fake.make_blind, [Trial(5, 8)], _options(record=True))
    assert result.episode is not None and result.episode.images == {} and len(result.episode.image_steps) == 0


def test_demonstrations_mark_errors_on_purpose() -> None:
    ends: list[int] = []
    trials = [Trial(r, s) for r in (1, 2) for s in range(3)]
    results = run_demonstrations(
        fake.make_seeing, fake.GoToGoal, trials, _options(record=True), lambda r: ends.append(r.seed)
    )
    assert [result.trial for result in results] == trials and len(ends) == 6
    for result in results:
        assert result.success and result.episode is not None and result.loss_mask is not None
        assert result.loss_mask.tolist() == [False] * 3 + [True] * (result.steps - 3)
        assert (result.episode.source == Source.SCRIPT).all()
        assert result.episode.image_steps.tolist() == list(range(0, result.steps, 3))


def test_several_runs_share_the_workers_and_stop_when_told() -> None:
    with open_rollout(fake.make_blind, _options()) as rollout:
        endless = (Trial(1, seed) for seed in itertools.count(0, 2))
        some = rollout.run(
            fake.solve, endless, keep_going=itertools.chain([True] * 9, itertools.repeat(False)).__next__
        )
        assert len(some) >= 4 and all(result.success for result in some)
        again = rollout.run(fake.solve, [Trial(1, 4), Trial(2, 5)])
        assert [(r.seed, r.success) for r in again] == [(4, True), (5, False)]


def test_a_trial_without_verdict_ends_as_failure() -> None:
    (result,) = run_trials(fake.solve, fake.make_blind, [Trial(5, 9)], _options(max_steps=7))
    assert (result.outcome, result.steps, result.reason) == (Outcome.FAILURE, 7, "no verdict within 7 steps")


@pytest.mark.parametrize(
    ("robot_seed", "message"),
    [
        (fake.RAISES, r"rollout-0 failed(.|\n)*motor of fake-666 is hot"),
        (fake.DIES, "rollout-0 died with exit code 3 while it had 1 chunks"),
        (fake.HANGS, "rollout-0: no answer in time"),
    ],
)
def test_a_worker_that_fails_is_named(robot_seed: int, message: str) -> None:
    options = _options(processes=1, round_deadline_s=0.5)
    with pytest.raises(RolloutError, match=message):
        run_trials(fake.solve, fake.make_blind, [Trial(robot_seed, 2)], options)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda batch: np.zeros((1, 8, 2)), r"policy gave \(1, 8, 2\)"),
        (lambda batch: np.zeros((4, 3, 2)), "H >= 5"),
        (lambda batch: np.full((4, 8, 2), np.nan), r"NaN or infinite actions in Trial\(robot_seed=1, seed=2"),
    ],
)
def test_a_policy_that_answers_nonsense(policy: Callable[[ObservationBatch], np.ndarray], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        run_trials(policy, fake.make_blind, [Trial(1, 2)], _options())


def test_queue_prefers_the_robot_that_a_slot_has_and_reads_ahead_little() -> None:
    source = iter([Trial(1, 0), Trial(2, 0), Trial(1, 1), Trial(3, 0)])
    queue = TrialQueue(source, 3)
    assert queue.take(2) == Trial(2, 0)
    assert next(source) == Trial(3, 0)
    assert [queue.take(9), queue.take(None), queue.take(1)] == [Trial(1, 0), Trial(1, 1), None]


def test_wire_round_trip() -> None:
    arrays = [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4), np.float32), np.array(True)]
    header, found = unpack(pack({"a": [1, "b"]}, arrays))
    assert header == {"a": [1, "b"]}
    for want, got in zip(arrays, found, strict=True):
        assert want.dtype == got.dtype and want.shape == got.shape and (want == got).all()


def test_options_are_checked() -> None:
    for bad in ({"execute_frames": 0}, {"groups": 3}, {"record": True, "jpeg_quality": 0}):
        with pytest.raises(ValueError, match="RolloutOptions"):
            _options(**bad)
