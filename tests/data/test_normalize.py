import json
import pathlib

import numpy as np
import pytest

from cel_jax.data import normalize as nz


def _stats(per_step: bool = True, objects: bool = True) -> nz.NormStats:
    rng = np.random.default_rng(1)
    mask = np.ones((50, 4), bool)
    mask[40:, 2:] = False
    poses = rng.normal(size=(50, 2, 7)) if objects else None
    return nz.compute_stats(rng.normal(size=(50, 3)), rng.normal(size=(50, 4, 2)), mask, poses, per_step)


def test_round_trip_and_formula() -> None:
    x = np.array([2.0, 3.0])
    np.testing.assert_allclose(nz.normalize(x, 1.0, 2.0), (x - 1) / 2.000001)
    np.testing.assert_allclose(nz.unnormalize(nz.normalize(x, 1.0, 2.0), 1.0, 2.0), x)


@pytest.mark.parametrize("per_step", [True, False])
def test_masked_steps_do_not_count(per_step: bool) -> None:
    rng = np.random.default_rng(2)
    chunks, mask = rng.normal(size=(30, 3, 2)), rng.random((30, 3)) < 0.7
    poisoned = np.where(mask[..., None], chunks, np.nan)
    stats = nz.compute_stats(np.zeros((30, 1)), poisoned, mask, per_step=per_step)
    rows = chunks[mask[:, 1], 1] if per_step else chunks[mask]
    got = (stats.action_mean[1], stats.action_std[1]) if per_step else (stats.action_mean, stats.action_std)
    np.testing.assert_allclose(got[0], rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(got[1], rows.std(0), rtol=1e-5)


def test_a_constant_dimension_gets_the_floor() -> None:
    stats = nz.compute_stats(np.full((5, 1), 7.0), np.zeros((5, 2, 1)), np.ones((5, 2), bool))
    assert stats.state_std[0] == np.float32(nz.STD_FLOOR)
    assert abs(nz.normalize(7.0 + 1e-4, stats.state_mean, stats.state_std)[0]) < 0.2


def test_json_and_openpi_round_trips(tmp_path: pathlib.Path) -> None:
    stats = _stats()
    copies = [nz.from_dict(json.loads(json.dumps(nz.to_dict(stats)))), nz.load_openpi(nz.save_openpi(stats, tmp_path))]
    for copy in copies:
        for name, value in vars(stats).items():
            np.testing.assert_array_equal(getattr(copy, name), value)


def test_openpi_file_with_quantiles_is_read(tmp_path: pathlib.Path) -> None:
    part = {"mean": [0.0, 1.0], "std": [1.0, 2.0], "q01": [0, 0], "q99": [1, 1]}
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": {"state": part, "actions": part}}))
    assert nz.load_openpi(tmp_path).action_std.tolist() == [1.0, 2.0]
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": {"state": part}}))
    with pytest.raises(ValueError, match="actions"):
        nz.load_openpi(tmp_path)


def test_compare_names_the_dimension_and_changes_nothing() -> None:
    stats, incoming = _stats(), _stats()
    assert nz.compare(stats, incoming) == []
    incoming.state_mean[1] += 5
    incoming.action_std[3, 0] *= 4
    found = nz.compare(stats, incoming)
    assert [line.split(":")[0] for line in found] == ["state[1]", "action[3, 0]"]
    assert nz.compare(stats, _stats(objects=False)) == ["objects: shape (2, 7) expected, None came"]


def test_bad_inputs_are_named() -> None:
    ones = np.ones((3, 2), bool)
    with pytest.raises(ValueError, match="time steps \\[1\\]"):
        nz.compute_stats(np.zeros((3, 1)), np.zeros((3, 2, 1)), np.array([[True, False]] * 3))
    with pytest.raises(ValueError, match="states holds NaN or infinity in dimensions \\[0\\]"):
        nz.compute_stats(np.full((3, 1), np.nan), np.zeros((3, 2, 1)), ones)
    with pytest.raises(ValueError, match="missing \\['action_std'\\]"):
        nz.from_dict({"state_mean": [0], "state_std": [1], "action_mean": [0]})
