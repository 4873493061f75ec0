"""The trainer with the real network, and the store's own notices through retrieval."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from cel_jax.config import FertConfig, PolicyConfig, TrainConfig
from cel_jax.data.episode import Features
from cel_jax.fert import retrieval, sharding, trainer
from cel_jax.fert.batches import BatchMaker, policy_loss
from cel_jax.fert.decoding import Decoder
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.pi0 import flow_loss, init_params
from cel_jax.models.presets import make_config
from cel_jax.replay import notices
from tests.fert.small_store import STATS, H, O, P, S, SmallStore, notice

FEATURES = Features("arms", S, S, (), (O, P), 30.0, (True, True, True, False))
TRAIN = TrainConfig(batch_size=8, micro_batch_size=4, peak_lr=1e-3, warmup_steps=2, decay_steps=50)


@pytest.mark.slow
def test_the_network_learns_a_batch_through_the_whole_path():
    store = SmallStore()
    store.add(*[notice("success", f"s{i}", 60, i) for i in range(3)])
    store.next_experience(9)
    config = make_config("nano", FEATURES, PolicyConfig(action_horizon=H, max_token_len=5))
    mesh = sharding.make_mesh(1, jax.devices()[:1])
    optimizer = trainer.make_optimizer(TRAIN)
    params = init_params(config, jax.random.PRNGKey(0))
    state = trainer.create_state(params, optimizer, TRAIN, mesh, jax.random.PRNGKey(1))
    step = trainer.make_train_step(policy_loss(flow_loss, ModelInputs, config), optimizer, mesh, TRAIN)
    make = BatchMaker(STATS, FEATURES.delta_mask, np.arange(5), np.ones(5, bool), Decoder(1))
    batch = sharding.put_batch(make(store.sample(8, 0)), mesh)
    losses = []
    for _ in range(25):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(losses).all() and np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5]), losses


def test_the_stores_coarse_frames_are_those_that_retrieval_reads():
    """In both modes and at every length: the store sends no frame too few, the learner reads none twice."""
    config = FertConfig()
    for total in range(1, 260):
        for stride in (1, 3):
            observed = np.arange(0, total, stride, dtype=np.int32)
            begin, end = notices.query_window(total, config.query_frames, config.endpoint_offset_frames)
            sent = notices.query_steps(observed, begin, end, config.stride_frames)
            wanted = retrieval.query_steps(total, config)
            if len(sent) and len(wanted):
                rows = retrieval.observed_rows(sent, wanted)
                assert (len(sent), rows.tolist()) == (len(wanted), list(range(len(wanted)))), (total, stride)
            sent = notices.candidate_steps(observed, config.stride_frames)
            rows = retrieval.observed_rows(sent, retrieval.success_steps(total, config))
            assert rows.tolist() == list(range(len(sent)))
    assert "episode" in {field.name for field in dataclasses.fields(notices.ExperienceNotice)}
