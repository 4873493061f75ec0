"""Embeddings against literal equations, whatever the batch size."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from cel_jax.data.normalize import NormStats
from cel_jax.fert.embedding import Embedder, join_halves, pool_tokens, tower_hash
from cel_jax.fert.embedding_cache import EmbeddingCache

RNG = np.random.default_rng(0)
STATS = NormStats(
    state_mean=np.float32([1, 2, 3]),
    state_std=np.float32([1, 2, 4]),
    action_mean=np.zeros(3, np.float32),
    action_std=np.ones(3, np.float32),
    objects_mean=np.full((2, 3), 0.5, np.float32),
    objects_std=np.full((2, 3), 2.0, np.float32),
)
KERNEL = RNG.normal(size=(3, 5)).astype(np.float32)


def patches(kernel, images):
    """A tower: 4-pixel patches, averaged and projected."""
    b, h, w, _ = images.shape
    grid = images.reshape(b, h // 4, 4, w // 4, 4, 3).mean((2, 4)).reshape(b, -1, 3)
    return grid @ kernel


def unit(x):
    return x / (np.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)


def test_sixteen_by_sixteen_pools_to_four_by_four_windows():
    tokens = RNG.normal(size=(2, 256, 3)).astype(np.float32)
    want = tokens.reshape(2, 4, 4, 4, 4, 3).mean((2, 4)).reshape(2, -1)
    np.testing.assert_allclose(pool_tokens(jnp.asarray(tokens)), want, atol=1e-6)


@pytest.mark.parametrize("side", [5, 6, 7, 9, 14])
def test_other_grids_pool_to_sixteen_and_keep_constants_and_corners(side):
    tokens = np.ones((1, side * side, 1), np.float32)
    tokens[0, 0] = 100
    pooled = np.asarray(pool_tokens(jnp.asarray(tokens))).reshape(4, 4)
    assert pooled[0, 0] > 1.5
    np.testing.assert_allclose(pooled[1:, 1:], 1, atol=1e-5)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_small_grids_stay(side):
    tokens = RNG.normal(size=(1, side * side, 2)).astype(np.float32)
    np.testing.assert_array_equal(pool_tokens(jnp.asarray(tokens)), tokens.reshape(1, -1))


def test_tokens_that_are_no_grid_are_refused():
    with pytest.raises(ValueError, match="got 7"):
        pool_tokens(jnp.zeros((1, 7, 2)))


def test_halves_weigh_the_same_and_a_zero_half_is_not_nan():
    out = np.asarray(join_halves(jnp.full((1, 50), 9.0), jnp.float32([[0.1, 0.2]])))
    assert np.linalg.norm(out[0, :50]) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(out[0, 50:]) == pytest.approx(1, abs=1e-4)
    assert np.isfinite(np.asarray(join_halves(jnp.zeros((1, 4)), jnp.zeros((1, 2))))).all()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 13])
@pytest.mark.parametrize("with_params", [False, True])
def test_images_in_camera_order_at_any_count(count, with_params):
    images = {c: RNG.integers(0, 256, (count, 24, 24, 3)).astype(np.uint8) for c in ("wrist", "head")}
    state = RNG.normal(size=(count, 3)).astype(np.float32)
    if with_params:
        embedder = Embedder(patches, STATS, ("head", "wrist"), jnp.asarray(KERNEL), batch_sizes=(2, 4))
    else:
        embedder = Embedder(lambda x: patches(KERNEL, x), STATS, ("head", "wrist"), batch_sizes=(2, 4))
    visual = [pool_tokens(jnp.asarray(patches(KERNEL, images[c] / 127.5 - 1))) for c in ("head", "wrist")]
    numbers = (state - STATS.state_mean) / (STATS.state_std + 1e-6)
    want = np.concatenate([unit(np.concatenate(visual, -1)), unit(numbers)], -1)
    got = embedder(images, state)
    assert got.shape == (count, 2 * 16 * 5 + 3) and got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-5)
    as_float = {c: (x / 127.5 - 1).astype(np.float32) for c, x in images.items()}
    np.testing.assert_allclose(embedder(as_float, state), got, atol=1e-6)


def test_state_mode_uses_normalised_object_poses():
    objects = RNG.normal(size=(5, 2, 3)).astype(np.float32)
    state = RNG.normal(size=(5, 3)).astype(np.float32)
    got = Embedder(None, STATS, batch_sizes=(4,))({}, state, objects)
    poses = ((objects - 0.5) / (2 + 1e-6)).reshape(5, -1)
    want = np.concatenate([unit(poses), unit((state - STATS.state_mean) / (STATS.state_std + 1e-6))], -1)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_what_is_missing_is_named():
    embedder = Embedder(lambda x: patches(KERNEL, x), STATS, ("head", "wrist"))
    with pytest.raises(ValueError, match="wrist"):
        embedder({"head": np.zeros((1, 8, 8, 3), np.uint8)}, np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match=r"2 states but .'head': 1"):
        embedder({c: np.zeros((1 + (c == "wrist"), 8, 8, 3), np.uint8) for c in ("head", "wrist")}, np.zeros((2, 3)))
    with pytest.raises(ValueError, match="object poses False"):
        Embedder(None, STATS)({}, np.zeros((1, 3), np.float32))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_cache_returns_the_same_bits(tmp_path, dtype):
    cache = EmbeddingCache(tmp_path, "abc")
    rows = RNG.normal(size=(7, 3)).astype(dtype)
    cache.save("robot/1:e7", rows, 20)
    got, num_frames = cache.load("robot/1:e7")
    assert got.dtype == rows.dtype and num_frames == 20
    np.testing.assert_array_equal(got.astype(np.float32), rows.astype(np.float32))
    assert cache.load("robot/1:e8") is None
    assert EmbeddingCache(tmp_path, "other tower").load("robot/1:e7") is None


def test_a_damaged_file_is_named_and_read_as_absent(tmp_path, caplog):
    cache = EmbeddingCache(tmp_path, "abc")
    cache.save("e1", np.ones((400, 3), np.float32), 20)
    (path,) = (tmp_path / "abc").iterdir()
    path.write_bytes(path.read_bytes()[:200])
    assert cache.load("e1") is None and "e1 is damaged" in caplog.text
    cache.save("e1", np.ones((4, 3), np.float32), 20)
    cache.save("e2", np.ones((4, 3), np.float32), 20)
    cache.keep_only(["e2"])
    assert cache.load("e1") is None and cache.load("e2") is not None


def test_tower_hash_sees_weights_statistics_cameras_and_stride():
    base = tower_hash({"k": KERNEL}, STATS, ("a", "b"), 3)
    assert base == tower_hash({"k": jnp.asarray(KERNEL)}, STATS, ["a", "b"], 3)
    other = NormStats(STATS.state_mean + 1, STATS.state_std, STATS.action_mean, STATS.action_std)
    variants = [({"k": KERNEL + 1}, STATS, ("a", "b"), 3), ({"k": KERNEL}, other, ("a", "b"), 3)]
    variants += [({"k": KERNEL}, STATS, ("b", "a"), 3), ({"k": KERNEL}, STATS, ("a", "b"), 2)]
    assert len({base, *(tower_hash(*v) for v in variants)}) == 5
