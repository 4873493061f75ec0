"""What the store tells the learner of new experience: the coarse frames that retrieval reads, and nothing else.

Shape letters: M coarse frames, S state numbers, O objects, P numbers per pose, T frames.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from cel_jax.data.episode import Episode


@dataclasses.dataclass(frozen=True)
class ExperienceNotice:
    """A success to embed, or a failure to search for; delivered at least once.

    number: the event that took the episode. [begin, end): the frames it speaks of: the whole episode of a success, the
    query window of a failure. steps: int32 [M], the raw frame of each coarse one. state: float32 [M, S].
    objects: float32 [M, O, P] or None. images: camera -> M JPEG byte strings, {} in `state` mode.
    """

    kind: str  # `success` or `failure`
    episode: str
    station: str
    robot_id: str
    number: int
    num_frames: int
    begin: int
    end: int
    steps: np.ndarray
    state: np.ndarray
    objects: np.ndarray | None
    images: Mapping[str, tuple[bytes, ...]]


def query_window(num_frames: int, query_frames: int, endpoint_offset_frames: int) -> tuple[int, int]:
    """[b, e) of a failure, equation (4); empty where the episode is shorter than the offset."""
    end = max(0, num_frames - endpoint_offset_frames)
    return max(0, num_frames - endpoint_offset_frames - query_frames), end


def candidate_steps(observed: np.ndarray, stride: int) -> np.ndarray:
    """int32 [M]: frames 0, stride, 2 stride, ... that are on record."""
    return observed[observed % stride == 0].astype(np.int32)


def query_steps(observed: np.ndarray, begin: int, end: int, stride: int) -> np.ndarray:
    """int32 [M]: counted back by `stride` from the last frame on record in [begin, end)."""
    inside = observed[(observed >= begin) & (observed < end)]
    if len(inside) == 0:
        return np.zeros(0, np.int32)
    return inside[(inside[-1] - inside) % stride == 0].astype(np.int32)


def success_notice(episode: Episode, number: int, stride: int) -> ExperienceNotice:
    return _notice("success", episode, number, 0, episode.num_frames, candidate_steps(episode.observed_steps(), stride))


def failure_notice(
    episode: Episode, number: int, query_frames: int, offset_frames: int, stride: int
) -> ExperienceNotice | None:
    """None where the query window holds no frame: such a failure retrieves nothing."""
    begin, end = query_window(episode.num_frames, query_frames, offset_frames)
    steps = query_steps(episode.observed_steps(), begin, end, stride)
    return _notice("failure", episode, number, begin, end, steps) if len(steps) else None


def _notice(kind: str, episode: Episode, number: int, begin: int, end: int, steps: np.ndarray) -> ExperienceNotice:
    rows = np.searchsorted(episode.image_steps, steps)
    images = {camera: tuple(jpegs[row] for row in rows) for camera, jpegs in episode.images.items()}
    header, objects = episode.header, None if episode.objects is None else episode.objects[steps]
    return ExperienceNotice(
        kind,
        header.id,
        header.station,
        header.robot_id,
        number,
        episode.num_frames,
        begin,
        end,
        steps,
        episode.state[steps],
        objects,
        images,
    )
