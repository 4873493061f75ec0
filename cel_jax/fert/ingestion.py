"""New experience: successes go into the ring, failures become retrieval events.

Shape letters: V observed frames, M query frames, D embedding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable

import numpy as np

from cel_jax.config import FertConfig
from cel_jax.fert import retrieval
from cel_jax.fert.decoding import Decoder
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.embedding_cache import EmbeddingCache
from cel_jax.fert.interfaces import ExperienceNotice, Peers, Store
from cel_jax.fert.retrieval import Retrieved
from cel_jax.fert.ring import SuccessRing

Retriever = Callable[[SuccessRing, np.ndarray, FertConfig], list[Retrieved]]


@dataclasses.dataclass(frozen=True)
class Event:
    """What one failure led to, for the record. Empty `retrieved`: no valid event."""

    failure_id: str
    query_frames: int
    retrieved: tuple[Retrieved, ...]
    embed_s: float
    search_s: float


@dataclasses.dataclass(frozen=True)
class IngestReport:
    """Ids of successes that can now be retrieved, and the failures' events, in order of arrival."""

    successes: tuple[str, ...]
    events: tuple[Event, ...]


class Ingestion:
    """Takes notices from the store. Runs between training steps, in the learner's thread.

    lock: held during each call to the store. retriever: `retrieve`, or a control.
    cache: embeddings on disk. peers: asks the fleet's other stores (config.scope `fleet`); None on a single store.
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
        retriever: Retriever = retrieval.retrieve,
    ):
        self._store, self._ring, self._embedder, self._decode = store, ring, embedder, decoder
        self._config, self._cache, self._retriever = config, cache, retriever
        self._lock = lock or contextlib.nullcontext()
        self._peers = peers if config.scope == "fleet" else None

    def run(self, max_items: int) -> IngestReport:
        """Handle up to `max_items` episodes. Raises ValueError for an unknown kind, DamagedImage for bad bytes."""
        with self._lock:
            notices = self._store.next_experience(max_items)
        successes, events = [], []
        for notice in notices:
            if notice.kind == "success":
                successes.append(self._success(notice))
            elif notice.kind == "failure":
                events.append(self._failure(notice))
            else:
                raise ValueError(f"episode {notice.episode}: kind {notice.kind!r}, expected success or failure")
        return IngestReport(tuple(successes), tuple(events))

    def warm(self, episode_ids: list[str]) -> list[str]:
        """Refill the ring from the cache, oldest first, after a restart; returns the ids that must be embedded anew."""
        missing = []
        for episode_id in episode_ids:
            cached = self._cache.load(episode_id) if self._cache else None
            if cached is None:
                missing.append(episode_id)
            else:
                self._add(episode_id, *cached)
        return missing

    def search(self, query: np.ndarray) -> list[Retrieved]:
        """This store's own top-K for a query [M, D]: what a peer's question is answered with."""
        return self._retriever(self._ring, query, self._config)

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

    def _failure(self, notice: ExperienceNotice) -> Event:
        event = self._event(notice)
        with self._lock:
            self._store.apply_event(notice.episode, [one.interval for one in event.retrieved])
        return event

    def _event(self, notice: ExperienceNotice) -> Event:
        steps = retrieval.query_steps(notice.num_frames, self._config)
        if not self._config.failure_retrieval or not len(steps):
            return Event(notice.episode, len(steps), (), 0.0, 0.0)
        start = time.monotonic()
        query = self._embed(notice, steps)
        middle = time.monotonic()
        results = [self.search(query), *(self._peers(notice.episode, query) if self._peers else [])]
        best = retrieval.merge(results, self._config.top_k)
        return Event(notice.episode, len(steps), tuple(best), middle - start, time.monotonic() - middle)

    def _embed(self, notice: ExperienceNotice, wanted: np.ndarray) -> np.ndarray:
        """float32 [len(wanted), D]: the embeddings that stand for these raw frames; only they are decoded."""
        rows = retrieval.observed_rows(notice.steps, wanted)
        keys = [(notice.episode, int(notice.steps[row])) for row in rows]
        jpegs = {name: [notice.images[name][row] for row in rows] for name in self._embedder.cameras}
        objects = None if notice.objects is None else notice.objects[rows]
        return self._embedder(self._decode(jpegs, keys), notice.state[rows], objects)
