"""From a failed episode to intervals of past successes (paper section on retrieval, equations (4)-(9)).

Coarse frame i of a success is its raw frame 3i (at the default stride). Shape letters: M query frames, D embedding.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cel_jax.config import FertConfig
from cel_jax.fert.ring import Match, SuccessRing


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """One retrieved success: alignment cost, coarse interval [left, right), extended raw interval [start, stop)."""

    episode_id: str
    cost: float
    left: int
    right: int
    start: int
    stop: int

    @property
    def interval(self) -> tuple[str, int, int]:
        """As the store takes it."""
        return self.episode_id, self.start, self.stop


def query_steps(num_frames: int, config: FertConfig) -> np.ndarray:
    """Equation (4): raw frames int64 [M] of a failure's query, counted back from its last frame by the stride.

    Empty if the episode is too short to have a query.
    """
    stop = max(0, num_frames - config.endpoint_offset_frames)
    start = max(0, stop - config.query_frames)
    return np.arange(stop - 1, start - 1, -config.stride_frames)[::-1]


def max_query_frames(config: FertConfig) -> int:
    """Coarse frames of a full query; shorter queries are padded to this, so that nothing compiles anew."""
    return -(-config.query_frames // config.stride_frames)


def success_steps(num_frames: int, config: FertConfig) -> np.ndarray:
    """Raw frames int64 [ceil(T / stride)] that stand for a success in the ring."""
    return np.arange(0, num_frames, config.stride_frames)


def observed_rows(steps: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each wanted raw frame the row of the newest observation at or before it (the first one, if there is none).

    steps: int [V], rising, the frames on record.
    """
    if not len(steps):
        raise ValueError("the episode has no observed frame; expected at least one")
    return np.maximum(np.searchsorted(steps, wanted, side="right") - 1, 0)


def retrieve(ring: SuccessRing, query: np.ndarray, config: FertConfig) -> list[Retrieved]:
    """Equation (9): the `top_k` best-aligned successes for a query [M, D], best first; fewer if fewer are eligible.

    Ties in cost go to the smaller id.
    """
    return retrieve_many(ring, [query], config)[0]


def retrieve_many(ring: SuccessRing, queries: Sequence[np.ndarray], config: FertConfig) -> list[list[Retrieved]]:
    """`retrieve` of several queries in one pass over the ring: what several failures that came at once cost."""
    asked = [query for query in queries if len(query)]
    if not len(ring) or not asked:
        return [[] for _ in queries]
    rows = max(max_query_frames(config), *map(len, asked))
    padded = np.stack([_padded(query, rows) for query in asked])
    found = iter(ring.nearest(padded, [len(query) for query in asked], config.top_k))
    return [[extended(match, config) for match in next(found)] if len(query) else [] for query in queries]


def each(
    retriever: Callable[[SuccessRing, np.ndarray, FertConfig], list[Retrieved]],
) -> Callable[[SuccessRing, Sequence[np.ndarray], FertConfig], list[list[Retrieved]]]:
    """A control that answers one query, in the place of `retrieve_many`."""
    return lambda ring, queries, config: [retriever(ring, query, config) for query in queries]


def merge(results: Iterable[Sequence[Retrieved]], k: int) -> list[Retrieved]:
    """The `k` best of several hosts' results: what one store holding everything would have returned."""
    return heapq.nsmallest(k, (one for result in results for one in result), key=lambda r: (r.cost, r.episode_id))


def extended(match: Match, config: FertConfig) -> Retrieved:
    """The raw interval of a match: [3 l', min(N, 3 r')), extended by h_pre and h_post and clipped to the trajectory."""
    start, stop = raw_interval(match.left, match.right, match.num_frames, config.stride_frames)
    start, stop = max(0, start - config.h_pre_frames), min(match.num_frames, stop + config.h_post_frames)
    return Retrieved(match.episode_id, match.cost, match.left, match.right, start, stop)


def raw_interval(left: int, right: int, num_frames: int, stride: int) -> tuple[int, int]:
    """Every raw frame that the coarse interval [left, right) stands for."""
    return stride * left, min(num_frames, stride * right)


def nearest_frame(ring: SuccessRing, query: np.ndarray, config: FertConfig) -> list[Retrieved]:
    """Control: match the query's last frame alone. The interval ends there and is as long as the query."""
    if not len(ring) or not len(query):
        return []
    span = len(query)
    best = [
        m
        for m in ring.align(_padded(query[-1:], max_query_frames(config)), 1)
        if ring.coarse_frames(m.episode_id) >= span
    ]
    moved = [_ending_at(match, match.right, span) for match in best]
    return merge([[extended(match, config) for match in moved]], config.top_k)


def random_intervals(
    ring: SuccessRing, query: np.ndarray, config: FertConfig, rng: np.random.Generator
) -> list[Retrieved]:
    """Control: `top_k` eligible successes, each with an interval of the query's length, both drawn uniformly."""
    span = len(query)
    names = sorted(name for name in ring.episode_ids if ring.coarse_frames(name) >= span > 0)
    chosen = rng.permutation(len(names))[: config.top_k]
    return [extended(_random_match(ring, names[i], span, rng), config) for i in chosen]


def _random_match(ring: SuccessRing, name: str, span: int, rng: np.random.Generator) -> Match:
    end = int(rng.integers(span, ring.coarse_frames(name) + 1))
    return _ending_at(Match(name, ring.num_frames(name), 0.0, 0, 0), end, span)


def _ending_at(match: Match, end: int, span: int) -> Match:
    """The match moved to the coarse interval of `span` frames that ends at `end` (never before the first frame)."""
    left = max(0, end - span)
    return dataclasses.replace(match, left=left, right=left + span)


def _padded(query: np.ndarray, rows: int) -> np.ndarray:
    """The query as float32 [rows, D]; the added rows are not read."""
    padded = np.zeros((rows, query.shape[1]), np.float32)
    padded[: len(query)] = query
    return padded
