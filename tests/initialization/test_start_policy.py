import dataclasses
import pathlib

import numpy as np
import pytest

from cel_jax.config import InitConfig, PolicyConfig, RunConfig, TaskConfig
from cel_jax.data.normalize import NormStats
from cel_jax.initialization import sft, start_policy
from cel_jax.initialization.sources import Demos
from cel_jax.initialization.start_policy import StartPolicyError, check_free, make_start_policy, overfitted
from cel_jax.models import presets
from cel_jax.models.openpi_export import export_openpi
from cel_jax.models.params_io import flatten
from cel_jax.models.pi0 import param_shapes
from cel_jax.models.saving import load_policy
from tests.data import tiny_datasets as tiny
from tests.initialization.toy_demos import SEEING
from tests.models.robots import noisy_params

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"


def _config(demos: pathlib.Path, horizon: int = 6, **init) -> RunConfig:
    quick = InitConfig(demos=str(demos), steps=8, batch_size=8, peak_lr=1e-3, **init)
    return RunConfig(policy=PolicyConfig(action_horizon=horizon, actions_per_token=3, flow_steps=2), init=quick)


@pytest.mark.slow
@pytest.mark.parametrize("name,dims,cameras", [("unitree_g1_v21", (26, 26), 1), ("octo_bridge_debug", (7, 7), 4)])
def test_a_policy_of_a_real_robots_data(tmp_path: pathlib.Path, name: str, dims: tuple[int, int], cameras: int) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"the data set {name} is not beside this checkout")
    said: list[str] = []
    config = _config(DATA / name, num_demos=12)
    make_start_policy(config, tmp_path / "policy", said.append, command="python -m launch.initialize")
    held = [float(line.split("held out ")[1].split(";")[0]) for line in said if line.startswith("step ")]
    assert held[-1] < held[0]
    policy = load_policy(tmp_path / "policy")
    assert (policy.features.state_dim, policy.features.action_dim) == dims
    assert len(policy.features.cameras) == cameras
    images = {c.name: np.zeros((2, c.height, c.width, 3), np.uint8) for c in policy.features.cameras}
    actions = policy.infer(np.zeros((2, dims[0]), np.float32), images, None, ["go"] * 2, seed=1)
    assert actions.shape == (2, 6, dims[1]) and np.isfinite(actions).all()
    assert "python -m launch.initialize" in (tmp_path / "policy" / "card.md").read_text()


def test_a_policy_that_is_there_is_kept(tmp_path: pathlib.Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(StartPolicyError, match="--overwrite"):
        check_free(tmp_path, overwrite=False)
    check_free(tmp_path, overwrite=True)
    check_free(tmp_path / "new", overwrite=False)


def test_demonstrations_shorter_than_a_chunk_are_refused(tmp_path: pathlib.Path) -> None:
    config = _config(tiny.write_v21(tmp_path / "d", [8, 5]), horizon=30)
    with pytest.raises(StartPolicyError, match=r"--config.policy.action_horizon=6 --config.policy.execute_frames=3"):
        make_start_policy(config, tmp_path / "policy", print)
    assert not (tmp_path / "policy").exists()


def test_rates_for_small_networks_do_not_reach_released_checkpoints(tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(_config(tmp_path), policy=PolicyConfig(preset="pi0"), task=TaskConfig())
    with pytest.raises(StartPolicyError, match=r"peak_lr 0\.001 would ruin"):
        make_start_policy(config, tmp_path / "policy", print)


@pytest.mark.parametrize("preset", ["nano", "nano_lora"])
def test_openpis_weights_are_the_beginning_and_lora_gets_fresh_factors(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    low = dataclasses.replace(presets.NANO, paligemma=dataclasses.replace(presets.NANO.paligemma, lora_rank=2))
    monkeypatch.setitem(presets.PRESETS, "nano_lora", low)
    config = RunConfig(policy=PolicyConfig(preset=preset, action_horizon=6, checkpoint=str(tmp_path / "openpi")))
    network = presets.make_config(preset, SEEING, config.policy)
    plain, ones = noisy_params(presets.without_lora(network)), np.ones(3, np.float32)
    stats = NormStats(ones, ones, ones[:2], ones[:2])
    export_openpi(tmp_path / "openpi", presets.without_lora(network), plain, stats, "toy")
    demos = Demos(SEEING, (), "nowhere")
    found = flatten(start_policy._checkpoint(config, demos))
    assert found.keys() == flatten(param_shapes(network)).keys()
    assert any("lora" in name for name in found) == (preset == "nano_lora")
    for name, leaf in flatten(plain).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    plain["state_proj"]["bias"] = plain["state_proj"]["bias"].at[0].set(np.nan)
    export_openpi(tmp_path / "openpi", presets.without_lora(network), plain, stats, "toy", overwrite=True)
    with pytest.raises(ValueError, match="leaves are not finite: state_proj/bias"):
        start_policy._checkpoint(config, demos)


def test_overfitting_is_said() -> None:
    losses = [sft.Losses(step, 3, 1.0, held, 1.0) for step, held in ((1, 2.0), (2, 1.0), (3, 1.5))]
    assert "was 1.0000 at step 2" in overfitted(losses)
    assert overfitted(losses[:2]) == "" and overfitted([dataclasses.replace(losses[0], held_out=None)]) == ""
