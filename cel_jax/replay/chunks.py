"""Which action chunks an episode gives, and what a batch of them looks like.

A chunk starts at a frame whose whole input is on record, and runs over [i, min(i + H, T)); the batch repeats the last
action up to H and masks the repetition. Only frames that the policy itself drove, in successes, are ever targets.
Shape letters: B batch, C chunks, H horizon, T frames, S state, A action, O objects, P numbers per pose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from cel_jax.data.episode import Episode, Source
from cel_jax.data.episode_check import describe


class SourceError(ValueError):
    """An action that the policy did not take, or an episode that is no success, was offered as a target."""


@dataclasses.dataclass(frozen=True)
class ChunkBatch:
    """B sampled chunks. keys: (episode id, start frame) of each.

    state: float32 [B, S]. actions: float32 [B, H, A], absolute. action_mask: bool [B, H], False where padded.
    objects: float32 [B, O, P] or None. images: camera -> B JPEG byte strings ({} in `state` mode).
    priority_version: number of the last event that the weights reflect. probabilities: float64 [B], equation (11).
    """

    keys: tuple[tuple[str, int], ...]
    state: np.ndarray
    actions: np.ndarray
    action_mask: np.ndarray
    objects: np.ndarray | None
    images: Mapping[str, list[bytes]]
    priority_version: int
    probabilities: np.ndarray


def chunk_starts(episode: Episode, horizon: int, stride: int = 1) -> np.ndarray:
    """int32 [C]: observed frames, multiples of `stride`, whose `horizon` frames are all the policy's own work."""
    starts = episode.observed_steps().astype(np.int32)
    starts = starts[starts % stride == 0]
    return starts[~touches_others(episode, starts, horizon)]


def touches_others(episode: Episode, starts: np.ndarray, horizon: int) -> np.ndarray:
    """bool [C]: whether [i, min(i + H, T)) holds a frame of a human or a script, or an intervened one."""
    foreign = (episode.source != Source.POLICY) | episode.intervened
    before = np.concatenate([[0], np.cumsum(foreign)])
    ends = np.minimum(starts + horizon, episode.num_frames)
    return before[ends] > before[starts]


def check_targets(episode: Episode, starts: np.ndarray, horizon: int) -> None:
    """The last gate before a table. Raises `SourceError` for anything but the policy's own successful chunks."""
    who = describe(episode.header)
    if not episode.success:
        raise SourceError(f"{who}: outcome {episode.label.outcome.value!r}; only successes give action targets")
    outside = starts[(starts < 0) | (starts >= episode.num_frames)]
    if len(outside):
        raise SourceError(f"{who}: chunk start {outside[0]} outside [0, {episode.num_frames})")
    foreign = starts[touches_others(episode, starts, horizon)]
    if len(foreign):
        raise SourceError(
            f"{who}: the chunk from frame {foreign[0]} holds actions that the policy did not take; "
            "take the starts from `chunk_starts`"
        )


def chunk_lengths(starts: np.ndarray, num_frames: int, horizon: int) -> np.ndarray:
    """int64 [C]: |idx(A_i)|, the frames of a chunk without its padding."""
    return np.minimum(starts.astype(np.int64) + horizon, num_frames) - starts


def pad_actions(actions: np.ndarray, horizon: int) -> np.ndarray:
    """float32 [k, A] with 1 <= k <= H -> [H, A] by repeating the last action."""
    if len(actions) == horizon:
        return actions
    return np.concatenate([actions, np.repeat(actions[-1:], horizon - len(actions), axis=0)])
