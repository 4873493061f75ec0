"""Checkpoints: whole or absent, of this run alone, and never in the way."""

from __future__ import annotations

import dataclasses
import threading

import jax
import numpy as np
import pytest

from cel_jax.fert import checkpoints, manifest, sharding, trainer
from cel_jax.fert.checkpoints import CheckpointFailed, CheckpointStore
from cel_jax.fert.manifest import CheckpointMismatch, Identity
from tests.fert import toy

ME = Identity("run-7", "toy", "c0ffee")
EXTRAS = {
    "priorities": {"weights": np.array([0.5, 2.25, 1e-300]), "version": 12, "keys": [["e1", 0], ["e2", 4]]},
    "norm_stats": {"state_mean": np.float32([1, 2]), "objects_mean": None},
}


def make_state():
    mesh = sharding.make_mesh(1, jax.devices()[:1])
    optimizer = trainer.make_optimizer(toy.CONFIG)
    state = trainer.create_state(toy.params(), optimizer, toy.CONFIG, mesh, jax.random.PRNGKey(1))
    return state, trainer.make_train_step(toy.loss, optimizer, mesh, toy.CONFIG), mesh


def at(state, step):
    return state.replace(step=jax.numpy.int32(step))


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


@pytest.fixture(scope="module")
def trained():
    return make_state()[0]


def saved(folder, state, steps=(5,), **kwargs):
    store = CheckpointStore(folder, ME, **kwargs)
    for step in steps:
        store.save(at(state, step), 3, EXTRAS)
    store.close()
    return store


def test_training_resumes_bit_for_bit_with_its_extras(tmp_path):
    state, step, mesh = make_state()
    batches = [sharding.put_batch(toy.batch(seed, 1.0), mesh) for seed in range(6)]
    store = CheckpointStore(tmp_path, ME)
    for number, batch in enumerate(batches):
        if number == 3:
            store.save(state, 9, EXTRAS)
        state, _ = step(state, batch)
    store.close()
    assert store.metrics["checkpoint_write_s"] > 0 and store.metrics["checkpoint_copy_s"] >= 0
    back = CheckpointStore(tmp_path, ME).restore(make_state()[0])
    assert (back.step, back.policy_version, back.extras["priorities"]["version"]) == (3, 9, 12)
    weights = back.extras["priorities"]["weights"]
    assert weights.dtype == np.float64 and weights.tolist() == [0.5, 2.25, 1e-300]
    assert back.extras["priorities"]["keys"] == [["e1", 0], ["e2", 4]]
    assert back.extras["norm_stats"]["objects_mean"] is None
    resumed = back.state
    for batch in batches[3:]:
        resumed, _ = step(resumed, batch)
    same(resumed, state)


def test_a_save_keeps_the_state_of_its_moment_and_does_not_block(tmp_path, monkeypatch):
    write, release = checkpoints._write_leaves, threading.Event()

    def held(folder, leaves):
        assert release.wait(60)
        write(folder, leaves)

    monkeypatch.setattr(checkpoints, "_write_leaves", held)
    state, step, mesh = make_state()
    before = jax.tree.map(lambda leaf: np.array(leaf), state)
    store = CheckpointStore(tmp_path, ME)
    store.save(state, 0, {})
    for seed in range(3):  # the state's buffers are given up and reused meanwhile
        state, _ = step(state, sharding.put_batch(toy.batch(seed), mesh))
        store.check()
        assert store.latest() is None
    release.set()
    store.close()
    assert store.latest() == 0
    same(store.restore(make_state()[0]).state, before)


@pytest.mark.parametrize("change, words", [
    (lambda s: s.replace(params=s.params | {"new": np.zeros(3, np.float32)}), "missing 1: params/new"),
    (lambda s: s.replace(params={"in": s.params["in"]}), "surplus 1: params/out/kernel"),
    (lambda s: s.replace(ema_params=None), "surplus 3: ema_params/in/bias"),
    (lambda s: s.replace(rng=np.zeros(3, np.uint32)), r"another shape or dtype 1: rng: \(\(2,\), 'uint32'\)"),
    (lambda s: s.replace(rng=np.zeros(2, np.int32)), "another shape or dtype 1: rng"),
])  # fmt: skip
def test_a_leaf_that_does_not_fit_is_named(tmp_path, trained, change, words):
    store = saved(tmp_path, trained)
    with pytest.raises(CheckpointMismatch, match=words):
        store.restore(change(trained))


def test_other_runs_models_and_configurations_are_refused_by_name(tmp_path, trained):
    saved(tmp_path, trained)
    with pytest.raises(CheckpointMismatch, match="belongs to run 'run-7', this is run 'run-8'"):
        CheckpointStore(tmp_path, dataclasses.replace(ME, run_id="run-8"))
    with pytest.raises(CheckpointMismatch, match="holds model 'toy', this run trains 'pi0'"):
        CheckpointStore(tmp_path, dataclasses.replace(ME, model="pi0"))
    changed = CheckpointStore(tmp_path, dataclasses.replace(ME, config_hash="other"))
    with pytest.raises(CheckpointMismatch, match="under configuration c0ffee, this run has other"):
        changed.restore(trained)
    assert changed.restore(trained, allow_changed_config=True).step == 5


def test_latest_is_the_newest_committed_step_only(tmp_path, trained):
    store = saved(tmp_path, trained, steps=(5, 10), keep_last=5)
    (tmp_path / "15").mkdir()  # no manifest: not committed
    (tmp_path / "partial-20" / "state").mkdir(parents=True)
    assert store.latest() == 10
    again = CheckpointStore(tmp_path, ME)
    assert again.steps() == [5, 10] and not (tmp_path / "partial-20").exists()
    with pytest.raises(FileNotFoundError, match="no committed checkpoint 15"):
        again.restore(trained, step=15)


def test_an_interrupted_replacement_puts_the_old_step_back(tmp_path, trained):
    saved(tmp_path, trained)
    (tmp_path / "5").rename(tmp_path / "partial-old-5")
    assert CheckpointStore(tmp_path, ME).latest() == 5
    assert saved(tmp_path, trained, steps=(5,)).steps() == [5]


def test_the_last_and_every_nth_are_kept(tmp_path, trained):
    assert saved(tmp_path, trained, (5, 10, 15, 20, 25), keep_last=2, keep_every_steps=10).steps() == [10, 20, 25]


def test_a_failed_save_is_raised_and_leaves_no_step(tmp_path, trained, monkeypatch):
    def full(folder, leaves):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "_write_leaves", full)
    store = CheckpointStore(tmp_path, ME)
    store.save(at(trained, 5), 0, {})
    with pytest.raises(CheckpointFailed, match=r"checkpoint 5 was not written.*No space left"):
        store.save(at(trained, 10), 0, {})
    assert store.latest() is None


def test_an_overdue_save_is_raised(tmp_path, trained, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(checkpoints, "_write_leaves", lambda folder, leaves: release.wait(30))
    store = CheckpointStore(tmp_path, ME, deadline_s=0.05)
    store.save(trained, 0, {})
    with pytest.raises(CheckpointFailed, match=r"not written after 0\.05 s"):
        store.close()
    release.set()


def test_damaged_extras_are_refused(tmp_path, trained):
    store = saved(tmp_path, trained)
    path = tmp_path / "5" / checkpoints.EXTRAS
    path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    with pytest.raises(CheckpointMismatch, match=r"extras\.npz is damaged"):
        store.restore(trained)
    (tmp_path / "5" / manifest.FILE).write_text("{")
    with pytest.raises(CheckpointMismatch, match="its manifest is damaged"):
        store.restore(trained)
