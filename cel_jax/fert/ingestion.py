"""New experience: successes go into the ring, failures become retrieval events.

Shape letters: V observed frames, M query frames, D embedding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from cel_jax.config import FertConfig
from cel_jax.data.images import DamagedImage
from cel_jax.fert import retrieval
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import BadEmbeddings, Embedder
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.incoming_stats import IncomingStats
from cel_jax.fert.interfaces import ExperienceNotice, Peers, Store
from cel_jax.fert.retrieval import Retrieved
from cel_jax.fert.ring import SuccessRing

Retriever = Callable[[SuccessRing, Sequence[np.ndarray], FertConfig], list[list[Retrieved]]]
T = TypeVar("T")
UNUSABLE = (BadEmbeddings, DamagedImage)  # an episode's fault: it is set aside, and nobody else notices


@dataclasses.dataclass(frozen=True)
class Event:
    """What one failure led to, for the record. Empty `retrieved`: no valid event."""

    failure_id: str
    query_frames: int
    retrieved: tuple[Retrieved, ...]
    embed_s: float
    search_s: float


@dataclasses.dataclass(frozen=True)
class Skipped:
    """An episode that cannot be used, and why. Its store sets it aside; no priority changes."""

    episode_id: str
    reason: str


@dataclasses.dataclass(frozen=True)
class IngestReport:
    """Ids of successes that can now be retrieved, the failures' events, and what was skipped, in order of arrival.

    mismatches: where a robot's data differs from the policy's statistics, each said once.
    """

    successes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    mismatches: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Query:
    """rows: float32 [M, D], M = 0 where there is nothing to ask."""

    episode_id: str
    rows: np.ndarray
    frames: int
    embed_s: float


class Ingestion:
    """Takes notices from the store. Runs between training steps, in the learner's thread.

    lock: held during each call to the store. retriever: `retrieve_many`, or a control.
    cache: embeddings on disk. peers: asks the fleet's other stores (config.scope `fleet`); None on a single store.
    incoming: watches robots' data for statistics that are not the policy's. skipped: how many episodes were set aside.
    """

    def __init__(
        self,
        store: Store,
        ring: SuccessRing,
        embedder: Embedder,
        decoder: Decoder,
        config: FertConfig,
        lock: contextlib.AbstractContextManager[object] | None = None,
        cache: EmbeddingCache | None = None,
        peers: Peers | None = None,
        retriever: Retriever = retrieval.retrieve_many,
        incoming: IncomingStats | None = None,
    ):
        self.skipped = 0
        self._store, self._ring, self._embedder, self._decode = store, ring, embedder, decoder
        self._config, self._cache, self._retriever = config, cache, retriever
        self._lock = lock or contextlib.nullcontext()
        self._peers = peers if config.scope == "fleet" else None
        self._incoming = incoming

    def run(self, max_items: int) -> IngestReport:
        """Handle up to `max_items` episodes; failures that wait side by side are searched for in one pass.

        Raises ValueError for an unknown kind.
        """
        with self._lock:
            notices = self._store.next_experience(max_items)
        parts = [self._handle(kind, list(group)) for kind, group in itertools.groupby(notices, lambda one: one.kind)]
        return IngestReport(
            tuple(name for part in parts for name in part.successes),
            tuple(event for part in parts for event in part.events),
            tuple(one for part in parts for one in part.skipped),
            tuple(text for notice in notices for text in self._incoming.add(notice)) if self._incoming else (),
        )

    def _handle(self, kind: str, notices: list[ExperienceNotice]) -> IngestReport:
        if kind == "success":
            return self._successes(notices)
        if kind == "failure":
            return self._failures(notices)
        raise ValueError(f"episode {notices[0].episode}: kind {kind!r}, expected success or failure")

    def warm(self, episode_ids: list[str]) -> list[str]:
        """Refill the ring from the cache, oldest first, after a restart; returns the ids that must be embedded anew."""
        return [episode_id for episode_id in episode_ids if not self._warmed(episode_id)]

    def _warmed(self, episode_id: str) -> bool:
        cached = self._cache.load(episode_id) if self._cache else None
        if cached is None:
            return False
        try:
            self._add(episode_id, *cached)
        except BadEmbeddings:  # written by another version
            return False
        return True

    def search(self, query: np.ndarray) -> list[Retrieved]:
        """This store's own top-K for a query [M, D]: what a peer's question is answered with."""
        return self._retriever(self._ring, [query], self._config)[0]

    def _successes(self, notices: Iterable[ExperienceNotice]) -> IngestReport:
        taken, skipped = self._usable(notices, self._success)
        return IngestReport(successes=tuple(taken), skipped=skipped)

    def _usable(
        self, notices: Iterable[ExperienceNotice], use: Callable[[ExperienceNotice], T]
    ) -> tuple[list[T], tuple[Skipped, ...]]:
        """What `use` makes of each notice, and the episodes that it cannot use."""
        made, skipped = [], []
        for notice in notices:
            try:
                made.append(use(notice))
            except UNUSABLE as error:
                skipped.append(self._skip(notice, error))
        return made, tuple(skipped)

    def _skip(self, notice: ExperienceNotice, error: ValueError) -> Skipped:
        self.skipped += 1
        reason = f"{notice.kind} {notice.episode}: {error}"
        with self._lock:
            self._store.quarantine(notice.episode, reason)
        return Skipped(notice.episode, reason)

    def _success(self, notice: ExperienceNotice) -> str:
        cached = self._cache.load(notice.episode) if self._cache else None
        if cached is None:
            wanted = retrieval.success_steps(notice.num_frames, self._config)
            cached = self._embed(notice, wanted), notice.num_frames
            if self._cache:
                self._cache.save(notice.episode, *cached)
        self._add(notice.episode, *cached)
        with self._lock:
            self._store.embedded(notice.episode)
        return notice.episode

    def _add(self, episode_id: str, embeddings: np.ndarray, num_frames: int) -> None:
        for gone in self._ring.add(episode_id, embeddings, num_frames):
            if self._cache:
                self._cache.drop(gone)

    def _failures(self, notices: Iterable[ExperienceNotice]) -> IngestReport:
        queries, skipped = self._usable(notices, self._query)
        return IngestReport(events=tuple(self._answer(queries)), skipped=skipped)

    def _query(self, notice: ExperienceNotice) -> _Query:
        steps = retrieval.query_steps(notice.num_frames, self._config)
        if not self._config.failure_retrieval or not len(steps):
            return _Query(notice.episode, np.zeros((0, self._ring.dim), np.float32), len(steps), 0.0)
        start = time.monotonic()
        rows = self._embed(notice, steps)
        return _Query(notice.episode, rows, len(steps), time.monotonic() - start)

    def _answer(self, queries: list[_Query]) -> list[Event]:
        """One search for all of them, then one event each, in order of arrival."""
        start = time.monotonic()
        own = self._retriever(self._ring, [query.rows for query in queries], self._config) if queries else []
        found = [self._with_peers(query, local) for query, local in zip(queries, own, strict=True)]
        search_s = (time.monotonic() - start) / max(1, len(queries))
        events = []
        for query, best in zip(queries, found, strict=True):
            with self._lock:
                self._store.apply_event(query.episode_id, [one.interval for one in best])
            events.append(Event(query.episode_id, query.frames, tuple(best), query.embed_s, search_s))
        return events

    def _with_peers(self, query: _Query, local: list[Retrieved]) -> list[Retrieved]:
        others = self._peers(query.episode_id, query.rows) if self._peers and len(query.rows) else []
        return retrieval.merge([local, *others], self._config.top_k)

    def _embed(self, notice: ExperienceNotice, wanted: np.ndarray) -> np.ndarray:
        """float32 [len(wanted), D]: the embeddings that stand for these raw frames; only they are decoded.

        Raises BadEmbeddings or DamagedImage, each naming the episode.
        """
        missing = sorted(set(self._embedder.cameras) - set(notice.images))
        if missing:
            raise BadEmbeddings(f"episode {notice.episode}: no images of {missing}; check the robot's cameras")
        rows = retrieval.observed_rows(notice.steps, wanted)
        keys = [(notice.episode, int(notice.steps[row])) for row in rows]
        jpegs = {name: [notice.images[name][row] for row in rows] for name in self._embedder.cameras}
        objects = None if notice.objects is None else notice.objects[rows]
        embeddings = self._embedder(self._decode(jpegs, keys), notice.state[rows], objects)
        self._ring.check(f"episode {notice.episode}", embeddings)
        return embeddings
