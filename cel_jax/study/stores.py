"""Stores of the controls: the demonstrations as a store, and targets by the true failing stage.

Both are `cel_jax.fert.interfaces.Store`. Shape letters: T frames, C chunks, B samples, H horizon.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cel_jax.data.demonstrations import Demonstration
from cel_jax.data.episode import Episode
from cel_jax.fert.interfaces import Chunks, ExperienceNotice, Store
from cel_jax.replay.chunks import ChunkBatch, pad_actions


class DemonstrationStore:
    """Uniform chunks of demonstrations, with the steps masked that the demonstrator erred in on purpose."""

    def __init__(self, demonstrations: Sequence[Demonstration], horizon: int) -> None:
        self._demos, self._horizon = list(demonstrations), horizon
        starts = [_starts(demo) for demo in self._demos]
        self._row = np.repeat(np.arange(len(starts)), [len(found) for found in starts])
        self._start = np.concatenate(starts)
        self._image_rows = [{int(step): row for row, step in enumerate(demo.image_steps)} for demo in self._demos]

    def next_experience(self, max_items: int) -> list[ExperienceNotice]:
        """None: demonstrations neither fail nor are retrieved."""
        return []

    def embedded(self, episode: str) -> None:
        raise AssertionError(f"{episode}: a demonstration is never embedded")

    def apply_event(self, failure: str, intervals: list[tuple[str, int, int]]) -> object:
        raise AssertionError(f"{failure}: demonstrations have no retrieval events")

    def quarantine(self, episode: str, reason: str) -> None:
        raise ValueError(f"demonstration {episode} cannot be trained on: {reason}; leave it out of the data")

    def sample(self, n: int, seed: int) -> ChunkBatch:
        """n chunks, uniform, with replacement."""
        picked = np.random.default_rng(seed).integers(0, len(self._row), n)
        demos = [self._demos[row] for row in self._row[picked]]
        starts = self._start[picked]
        pairs = list(zip(demos, starts.tolist(), strict=True))
        objects = [demo.objects[start] for demo, start in pairs if demo.objects is not None]
        cameras = self._demos[0].images
        return ChunkBatch(
            keys=tuple((demo.id, start) for demo, start in pairs),
            state=np.stack([demo.state[start] for demo, start in pairs]),
            actions=np.stack(
                [pad_actions(demo.action[start : start + self._horizon], self._horizon) for demo, start in pairs]
            ),
            action_mask=np.stack([self._mask(demo, start) for demo, start in pairs]),
            objects=np.stack(objects) if objects else None,
            images={camera: self._jpegs(picked, camera) for camera in cameras},
            priority_version=0,
            probabilities=np.full(n, 1.0 / len(self._row)),
        )

    def _mask(self, demo: Demonstration, start: int) -> np.ndarray:
        """bool [H]: up to the episode's end and to the first step that is not to be learnt."""
        taught = demo.taught_steps()[start : start + self._horizon]
        mask = np.zeros(self._horizon, bool)
        mask[: len(taught)] = np.cumprod(taught).astype(bool)
        return mask

    def _jpegs(self, picked: np.ndarray, camera: str) -> list[bytes]:
        rows, starts = self._row[picked], self._start[picked]
        return [
            self._demos[row].images[camera][self._image_rows[row][int(start)]]
            for row, start in zip(rows, starts, strict=True)
        ]


def _starts(demo: Demonstration) -> np.ndarray:
    """int [C]: observed frames that are to be learnt."""
    observed = demo.image_steps if demo.images else np.arange(len(demo.state))
    return observed[demo.taught_steps()[observed]]


class OracleStore:
    """A store whose events aim at the true failing stage: what an ideal retrieval would find.

    Takes the place of each retrieved interval: in the same number of successes, drawn at random, the frames of the
    stage in which the episode failed. `saw` must hear of every episode before it is ingested.
    """

    def __init__(self, store: Store, top_k: int, seed: int) -> None:
        self._store, self._top_k = store, top_k
        self._rng = np.random.default_rng([0x0AC1E, seed])
        self._failing: dict[str, int] = {}
        self._spans: dict[str, dict[int, tuple[int, int]]] = {}
        self._searchable: set[str] = set()

    def saw(self, episode: Episode) -> None:
        """Notes where a success keeps each stage, and in which stage a failure ended."""
        if episode.success:
            self._spans[episode.header.id] = stage_spans(episode.stage)
        else:
            self._failing[episode.header.id] = int(episode.stage[-1])

    def next_experience(self, max_items: int) -> Sequence[ExperienceNotice]:
        return self._store.next_experience(max_items)

    def embedded(self, episode: str) -> None:
        self._searchable.add(episode)
        self._store.embedded(episode)

    def apply_event(self, failure: str, intervals: list[tuple[str, int, int]]) -> object:
        return self._store.apply_event(failure, self._targets(self._failing[failure]))

    def _targets(self, stage: int) -> list[tuple[str, int, int]]:
        names = sorted(name for name in self._searchable if stage in self._spans[name])
        chosen = [names[i] for i in self._rng.permutation(len(names))[: self._top_k]]
        return [(name, *self._spans[name][stage]) for name in chosen]

    def quarantine(self, episode: str, reason: str) -> None:
        self._store.quarantine(episode, reason)

    def sample(self, n: int, seed: int) -> Chunks | None:
        return self._store.sample(n, seed)


def stage_spans(stage: np.ndarray) -> dict[int, tuple[int, int]]:
    """int [T] -> for each stage the frames [first, last + 1) from its first to its last frame."""
    return {
        int(value): (int(where[0]), int(where[-1]) + 1)
        for value in np.unique(stage)
        for where in [np.flatnonzero(stage == value)]
    }
