"""One learner over two stores: nothing is asked of the wrong one, and together they draw what one store would."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cel_jax.data.episode import Outcome
from cel_jax.data.episode_codec import encode_episode
from cel_jax.data.frame_log import frames_to_episode
from cel_jax.replay.chunks import ChunkBatch
from cel_jax.replay.memory_table import MemoryTable
from cel_jax.replay.snapshot import StoreSnapshot
from cel_jax.replay.store import ExperienceStore, StoreConfig
from cel_jax.replay.table import TableEmpty
from cel_jax.workers.store_group import StoreGroup
from tests.workers.conftest import FEATURES, make_frames, make_header

CONFIG = StoreConfig(horizon=6, query_frames=12, stride_frames=3)


class LocalStore:
    """A `RemoteStore` without a bus."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ExperienceStore(folder, MemoryTable(6), CONFIG, FEATURES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def reset_learner(self, session: str) -> list[str]:
        self.store.reset_learner(session)
        return list(self.store.window)

    def sample(self, n: int, seed: int) -> ChunkBatch | None:
        try:
            return self.store.sample(n, seed)
        except TableEmpty:
            return None

    def snapshot(self) -> bytes:
        return self.store.snapshot().encode()

    def restore(self, snapshot: bytes) -> None:
        self.store.restore(StoreSnapshot.decode(snapshot))

    def take(self, name: str, outcome: Outcome, frames: int = 40) -> None:
        header, label = make_header(name, outcome)
        path = self.folder / f"{name}.new"
        path.write_bytes(encode_episode(frames_to_episode(header, label, make_frames(frames))))
        self.store.accept(path)


@pytest.fixture
def stores(tmp_path: Path) -> list[LocalStore]:
    """s0, s2 and the failure f0 in the first; s1 and f1 in the second."""
    made = [LocalStore(tmp_path / "0"), LocalStore(tmp_path / "1")]
    for name, outcome in (("s0", Outcome.SUCCESS), ("s2", Outcome.SUCCESS), ("f0", Outcome.FAILURE)):
        made[0].take(name, outcome)
    for name, outcome in (("s1", Outcome.SUCCESS), ("f1", Outcome.FAILURE)):
        made[1].take(name, outcome)
    return made


def group(stores: list[LocalStore]) -> StoreGroup:
    return StoreGroup(stores)  # type: ignore[arg-type]


def test_every_episode_is_announced_once_and_answered_at_its_store(stores: list[LocalStore]) -> None:
    whole = group(stores)
    assert whole.reset_learner("a") == ["s0", "s1", "s2"]
    seen: list[str] = []
    while notices := whole.next_experience(2):
        assert len(notices) <= 2
        for notice in notices:
            seen.append(notice.episode)
            if notice.kind == "success":
                whole.embedded(notice.episode)
            else:
                whole.apply_event(notice.episode, [("s0", 10, 20), ("s1", 10, 20)])
    assert sorted(seen) == ["f0", "f1", "s0", "s1", "s2"]


def test_an_event_reaches_the_stores_of_its_matches_and_the_failures_own(stores: list[LocalStore]) -> None:
    whole = group(stores)
    whole.reset_learner("a")
    whole.next_experience(9)
    before = [store.table.weights("s0" if number == 0 else "s1").copy() for number, store in enumerate(stores)]
    assert whole.apply_event("f0", [("s1", 10, 20)]) is True
    assert "f0" in stores[0]._state.retrieved and "f0" in stores[1]._state.retrieved
    np.testing.assert_array_equal(stores[0].table.weights("s0"), before[0])
    assert (stores[1].table.weights("s1") > before[1]).any()
    assert whole.apply_event("f0", [("s1", 10, 20)]) is False  # a learner that died before the answer came
    whole.apply_event("f1", [])
    assert "f1" not in stores[0]._state.retrieved


def test_an_event_cut_off_between_the_stores_is_applied_once_in_each(stores: list[LocalStore]) -> None:
    whole = group(stores)
    whole.reset_learner("a")
    whole.next_experience(9)
    stores[1].apply_peer_event("f0", [("s1", 10, 20)])  # then the learner died
    weights = stores[1].table.weights("s1").copy()
    assert [notice.episode for notice in whole.next_experience(9) if notice.kind == "failure"].count("f0") == 1
    assert whole.apply_event("f0", [("s1", 10, 20), ("s0", 0, 5)]) is True
    np.testing.assert_array_equal(stores[1].table.weights("s1"), weights)
    with pytest.raises(ValueError, match="this store holds it"):
        stores[1].apply_peer_event("f1", [])


def test_together_they_draw_in_proportion_to_their_chunks(stores: list[LocalStore]) -> None:
    whole = group(stores)
    counts: Counter[str] = Counter()
    for seed in range(200):
        batch = whole.sample(30, seed)
        assert batch is not None and len(batch.keys) == len(batch.state) == len(batch.probabilities) == 30
        counts.update(episode for episode, _ in batch.keys)
    assert counts["s0"] + counts["s2"] == 2 * counts["s1"] == 4000
    chunks = whole.counters()["window_chunks"]
    np.testing.assert_allclose(batch.probabilities, 1 / chunks)  # equal weights everywhere


def test_an_empty_store_gives_nothing_and_holds_nobody_up(tmp_path: Path) -> None:
    made = [LocalStore(tmp_path / "0"), LocalStore(tmp_path / "1")]
    assert group(made).sample(8, 0) is None
    made[1].take("s", Outcome.SUCCESS)
    batch = group(made).sample(8, 0)
    assert batch is not None and len(batch.keys) == 8


def test_a_checkpoint_holds_all_stores_and_fits_only_them(stores: list[LocalStore]) -> None:
    saved = group(stores).snapshot()
    group(stores).restore(saved)
    stores[0].take("later", Outcome.SUCCESS)
    group(stores).restore(saved)  # newer than the checkpoint is fine
    with pytest.raises(ValueError, match="2 stores, this run 3"):
        group([*stores, stores[0]]).restore(saved)
    group(stores[:1]).restore(group(stores[:1]).snapshot())
