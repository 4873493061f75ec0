"""Draws by blocks against the plain running sum, and the flat frame store against the episodes it was given."""

from __future__ import annotations

import numpy as np
import pytest

from cel_jax.replay.block_sums import BLOCK, BlockSums
from cel_jax.replay.frame_store import FrameStore
from tests.replay.episodes import make_episode


@pytest.mark.parametrize("size", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 17])
def test_whole_numbers_are_found_as_the_plain_running_sum_finds_them(size: int) -> None:
    """Sums of whole numbers are exact, so every target decides, ends of runs included."""
    rng = np.random.default_rng(size)
    sums = BlockSums(rng.integers(0, 3, size).astype(np.float64))
    for _ in range(30):
        first = int(rng.integers(0, size))
        sums.set(first, rng.integers(0, 3, int(rng.integers(0, min(3000, size - first) + 1))).astype(np.float64))
        plain = np.cumsum(sums.weights[:size])
        assert sums.total == plain[-1]
        targets = np.arange(int(sums.total)) + rng.choice([0.0, 0.5], int(sums.total))
        np.testing.assert_array_equal(sums.find(targets), np.searchsorted(plain, targets, side="right"))


def test_no_target_finds_a_weight_of_nothing() -> None:
    """Weights from 1e-300 to 1e300: whatever the rounding, what is found weighs something."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = int(rng.integers(1, 4 * BLOCK))
        weights = 10.0 ** rng.uniform(-300, 300, size) * (rng.random(size) < rng.choice([0.01, 0.5, 1.0]))
        sums = BlockSums(weights)
        if sums.total > 0:
            edges = np.array(
                [0.0, np.nextafter(sums.total, 0.0), sums.total]
            )  # random() * total can round to the total
            found = sums.find(np.concatenate([edges, rng.random(500) * sums.total]))
            assert (sums.weights[found] > 0).all()


def test_a_changed_table_draws_what_a_fresh_one_draws() -> None:
    rng = np.random.default_rng(1)
    changed = BlockSums(rng.random(5000))
    for _ in range(500):
        first = int(rng.integers(0, 4900))
        changed.set(first, rng.random(100) * 10.0 ** rng.integers(-9, 9))
    fresh = BlockSums(changed.weights[:5000])
    targets = rng.random(1000) * fresh.total
    assert changed.total == fresh.total
    np.testing.assert_array_equal(changed.find(targets), fresh.find(targets))


@pytest.mark.parametrize("images", [False, True])
def test_frames_survive_growth_and_reclaimed_rows(images: bool) -> None:
    horizon, store, held = 5, FrameStore(5), {}
    rng = np.random.default_rng(2)
    for number in range(150):
        episode = make_episode(f"e{number}", int(rng.integers(1, 70)), images=images, seed=number)
        store.add(episode)
        held[f"e{number}"] = episode
        if len(held) > 12:
            gone = str(rng.choice(list(held)))
            store.remove(gone)
            del held[gone]
        for key in list(held)[:: 1 if number % 20 == 0 else 5]:
            place, source = store.place(key), held[key]
            rows = place.row + np.arange(source.num_frames)
            np.testing.assert_array_equal(store.state(rows), source.state)
            repeated = np.minimum(np.arange(source.num_frames)[:, None] + np.arange(horizon), source.num_frames - 1)
            np.testing.assert_array_equal(store.actions(rows), source.action[repeated])
            found = store.images(place.image + np.arange(len(source.image_steps)))
            assert {camera: tuple(jpegs) for camera, jpegs in found.items()} == dict(source.images)
    assert len(store._columns["state"]) < 4 * 1024, "rows are not reclaimed"


def test_an_episode_of_other_columns_is_refused() -> None:
    store = FrameStore(5)
    store.add(make_episode("a"))
    with pytest.raises(ValueError, match=r"episode 'b' has columns .* and cameras \['head', 'wrist'\], the window has"):
        store.add(make_episode("b", images=True))
    store.remove("a")
    store.add(make_episode("b", images=True))
