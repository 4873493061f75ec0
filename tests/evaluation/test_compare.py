import pathlib

import jax
import numpy as np
import pytest

from cel_jax.config import EvalConfig, PolicyConfig, RunConfig, TaskConfig
from cel_jax.data.episode import CameraSpec, Features, Outcome
from cel_jax.data.normalize import NormStats
from cel_jax.evaluation import compare, rundb_evals
from cel_jax.evaluation.rundb_evals import EvaluationRow
from cel_jax.evaluation.scene_policy import scene_noise, scene_policy
from cel_jax.evaluation.simulated import MakeSimulated
from cel_jax.evaluation.trials import ObservationBatch
from cel_jax.models import pi0
from cel_jax.models.policy import Policy
from cel_jax.models.presets import make_config
from cel_jax.models.saving import save_policy

POLICY = PolicyConfig(action_horizon=15, actions_per_token=3, execute_frames=15, flow_steps=1)
CONFIG = RunConfig(
    task=TaskConfig(mode="state", max_episode_s=2.0),
    policy=POLICY,
    eval=EvalConfig(robots=2, trials_per_robot=2, processes=1),
)


def _rows(policy: str, outcomes: str, time_s: float = 0.0) -> list[EvaluationRow]:
    named = {"+": Outcome.SUCCESS, "-": Outcome.FAILURE}
    return [
        EvaluationRow(time_s, policy, 0, 0, f"sim-{n % 2}", n, named[mark], "", 9, "state")
        for n, mark in enumerate(outcomes)
    ]


def _policy(features: Features, seed: int = 0) -> Policy:
    config = make_config("nano", features, POLICY)
    sizes = features.state_dim, (15, features.action_dim), features.objects_shape
    stats = [array for size in sizes if size for array in (np.zeros(size, np.float32), np.ones(size, np.float32))]
    return Policy(config, pi0.init_params(config, jax.random.key(seed)), NormStats(*stats), features, POLICY)


def test_the_report_shows_table_and_difference() -> None:
    text = compare.report(CONFIG, {"start": _rows("start", "+---" * 10), "trained": _rows("trained", "+++-" * 10)})
    lines = text.splitlines()
    assert lines[2].split() == ["sim-0", "10/20", "20/20"] and lines[4].split() == ["Avg.", "(%)", "25.00", "75.00"]
    assert lines[-1].startswith("trained - start: +50.0 points, 95 % (Newcombe) +28.")
    assert "only trained solved 20, only start 0" in lines[-1]


def test_a_repeated_evaluation_does_not_add_trials() -> None:
    kept = rundb_evals.latest([*_rows("start", "+-"), *_rows("start", "++", 1.0), *_rows("trained", "--")])
    assert [(row.policy, row.time_s) for row in kept] == [("start", 1.0)] * 2 + [("trained", 0.0)] * 2
    assert rundb_evals.robot_results(kept)[0].trials == 1


def test_noise_belongs_to_the_scene_and_not_to_the_row() -> None:
    def batch(seeds: list[int], steps: list[int]) -> ObservationBatch:
        state = np.zeros((len(seeds), 2), np.float32)
        return ObservationBatch({}, state, None, np.ones(len(seeds), bool), np.array(seeds), np.array(steps))

    one, other = scene_noise(batch([7, 8], [0, 15]), (5, 2)), scene_noise(batch([8, 7, 8], [15, 15, 0]), (5, 2))
    np.testing.assert_array_equal(one[1], other[0])
    assert len({row.tobytes() for row in (*one, *other)}) == 4


@pytest.mark.slow
def test_policies_meet_the_same_scenes(tmp_path: pathlib.Path) -> None:
    features = MakeSimulated(CONFIG.task)(0).features
    for name, seed in (("start", 0), ("trained", 1)):
        policy = _policy(features, seed)
        save_policy(tmp_path / name, policy.config, policy.params, policy.norm_stats, features, POLICY)
    folders = {name: tmp_path / name for name in ("start", "trained")}
    text = compare.evaluate_policies(CONFIG, folders, tmp_path, lambda line: None, {"trained": 7})
    rows = rundb_evals.read(tmp_path / "run.db")
    scenes = [[(r.robot_id, r.seed) for r in rows if r.policy == name] for name in folders]
    assert scenes[0] == scenes[1] and len(set(scenes[0])) == 4
    assert {(r.policy, r.policy_version) for r in rows} == {("start", 0), ("trained", 7)}
    assert text.count("0/2") == 4 and "trained - start: +0.0 points" in text


@pytest.mark.slow
def test_a_trial_goes_the_same_in_any_batch() -> None:
    policy = _policy(MakeSimulated(CONFIG.task)(0).features)
    rng = np.random.default_rng(0)
    state, objects = rng.normal(size=(3, 16)).astype("f4"), rng.normal(size=(3, 7, 15)).astype("f4")
    infer = scene_policy(policy, "go")

    def act(rows: list[int]) -> np.ndarray:
        place = np.array(rows)
        return infer(ObservationBatch({}, state[place], objects[place], place >= 0, place + 5, place * 15))

    np.testing.assert_allclose(act([0, 1, 2])[2], act([2, 0])[0], atol=1e-5)


def test_policies_of_other_robots_are_refused() -> None:
    other = Features("other", 16, 16, (CameraSpec("top", 96, 96),), None, 30.0, (True,) * 16)
    with pytest.raises(compare.ComparisonError, match="policy start: made for"):
        compare.check_policy(CONFIG, "start", _policy(other))
    longer = RunConfig(task=CONFIG.task, policy=PolicyConfig(execute_frames=20))
    with pytest.raises(compare.ComparisonError, match="chunks of 15 actions, of which 20"):
        compare.check_policy(longer, "start", _policy(MakeSimulated(CONFIG.task)(0).features))
