"""What the learner asks of its store and its peers. The records are the store's; only their fields matter here.

Shape letters: V observed frames, S state numbers, O objects, P pose numbers, B samples, H horizon, A action numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from cel_jax.fert.retrieval import Retrieved

# (failure id, query float32 [M, D]) -> the local top-K of every other store of the fleet.
Peers = Callable[[str, np.ndarray], Sequence[Sequence[Retrieved]]]


class ExperienceNotice(Protocol):
    """A labelled episode as the learner sees it: observations, no actions.

    kind: `success` or `failure`. episode: its id. robot_id: whose. steps: int32 [V], raw frames of the rows.
    state: float32 [V, S]. objects: float32 [V, O, P] or None. images: camera -> V JPEG byte strings.
    num_frames: raw length.
    """

    @property
    def kind(self) -> str: ...
    @property
    def episode(self) -> str: ...
    @property
    def robot_id(self) -> str: ...
    @property
    def steps(self) -> np.ndarray: ...
    @property
    def state(self) -> np.ndarray: ...
    @property
    def objects(self) -> np.ndarray | None: ...
    @property
    def images(self) -> Mapping[str, Sequence[bytes]]: ...
    @property
    def num_frames(self) -> int: ...


class Chunks(Protocol):
    """B sampled chunks. state: float32 [B, S]. actions: float32 [B, H, A], absolute. action_mask: bool [B, H]."""

    @property
    def keys(self) -> Sequence[tuple[str, int]]: ...
    @property
    def state(self) -> np.ndarray: ...
    @property
    def actions(self) -> np.ndarray: ...
    @property
    def action_mask(self) -> np.ndarray: ...
    @property
    def objects(self) -> np.ndarray | None: ...
    @property
    def images(self) -> Mapping[str, Sequence[bytes]]: ...
    @property
    def priority_version(self) -> int: ...
    @property
    def probabilities(self) -> np.ndarray: ...


class Store(Protocol):
    """The learner's side of a store. Calls come from two threads but never two at a time."""

    def next_experience(self, max_items: int) -> Sequence[ExperienceNotice]:
        """Up to `max_items` episodes not yet handled, oldest first; empty if there are none."""
        ...

    def embedded(self, episode: str) -> None:
        """The success can be retrieved now."""
        ...

    def apply_event(self, failure: str, intervals: list[tuple[str, int, int]]) -> object:
        """One failure is handled. Without intervals nothing decays: it was no valid event."""
        ...

    def quarantine(self, episode: str, reason: str) -> None:
        """The episode cannot be used: it is named, is neither asked nor sampled again, and changes no other weight."""
        ...

    def sample(self, n: int, seed: int) -> Chunks | None:
        """`n` chunks in proportion to their priorities; None, or TableEmpty, while there is no chunk."""
        ...
