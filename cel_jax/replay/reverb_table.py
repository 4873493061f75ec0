"""The Reverb table: a dm-reverb server in this process; overlapping chunks share the frames of their episode.

What Reverb does not give and this file adds:
- An item's key is known only once it has been sampled. A new episode's items enter at `_LOUD` times all other weight,
  are drawn until each was seen, are silenced when seen, and then get their true weights.
- Its sum tree adds and subtracts, so a vanished weight can leave a residue. What weighs nothing by the exact books is
  drawn again.
- Its draws cannot be seeded (`seeded` is False), and its own checkpoints are not used: the store rebuilds the table.

Shape letters: C chunks of an episode, H horizon, T frames.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from cel_jax.data.episode import Episode
from cel_jax.replay.chunk_rows import ChunkData, make_batch
from cel_jax.replay.chunks import ChunkBatch
from cel_jax.replay.priorities import WeightUpdate, draw_probabilities
from cel_jax.replay.table import TableEmpty, one_at_a_time
from cel_jax.replay.window_index import WindowIndex

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import reverb

_LOUD = 4.0  # more, and removing it again leaves rounding errors that make Reverb rebuild its sum tree
_FLUSH_EVERY_FRAMES = 16  # Reverb warns, and grows, when more items than this wait
_FLUSH_DEADLINE_MS = 30_000
_MAX_ROUNDS = 1000
_PREFETCH = 16  # within one call: nothing is drawn before the weights it is drawn by
_CAMERA = "camera/"


class _Shelf:
    """One Reverb table of items and the keys by which they are addressed."""

    def __init__(self, name: str, client: Any, native: Any) -> None:
        self.name, self._client, self._native = name, client, native
        self.keys: dict[tuple[int, int], int] = {}  # (episode number, start) -> Reverb's key

    def draws(self, n: int) -> Iterator[tuple[int, list[np.ndarray]]]:
        """n draws: (item key, columns)."""
        sampler = self._native.NewSampler(self.name, n, _PREFETCH)
        for _ in range(n):
            sample = sampler.GetNextTrajectory()
            yield int(sample[0]), sample[5:]

    def mutate(self, weights: dict[int, float]) -> None:
        self._client.mutate_priorities(self.name, updates=weights)

    def delete(self, number: int, starts: np.ndarray) -> None:
        self._client.mutate_priorities(self.name, deletes=[self.keys.pop((number, int(start))) for start in starts])


@one_at_a_time
class ReverbTable:
    """Implements `ChunkTable` on dm-reverb."""

    name = "reverb"
    seeded = False

    def __init__(self, horizon: int, uniform_share: float = 0.0) -> None:
        self._index = WindowIndex(horizon)
        self._uniform_share = uniform_share
        self._flattened = False
        self._ids: dict[int, str] = {}
        self._columns: tuple[str, ...] = ()
        names = ("weighted", "uniform") if uniform_share > 0.0 else ("weighted",)
        self._server = reverb.Server([_reverb_table(name) for name in names])
        address = f"localhost:{self._server.port}"  # Reverb bypasses gRPC for a server of its own process
        self._client = reverb.Client(address)
        native = reverb.pybind.Client(address)
        self._shelves = [_Shelf(name, self._client, native) for name in names]

    @property
    def frames(self) -> int:
        return self._index.frames

    @property
    def chunks(self) -> int:
        return self._index.chunks

    @property
    def episodes(self) -> tuple[str, ...]:
        return self._index.episodes

    def keys(self) -> list[tuple[str, int]]:
        flat = self._index.flat()
        return [(flat.episodes[row], int(start)) for row, start in zip(flat.row, flat.start, strict=True)]

    def insert_episode(self, episode: Episode, starts: np.ndarray, weights: np.ndarray) -> None:
        self._check_columns(episode)
        share = _LOUD / max(1, len(starts))
        loud = [share * (self._index.total or 1.0), share * max(1, self.chunks)]
        number = self._index.insert(episode, starts, weights)
        self._ids[number] = episode.header.id
        if len(starts) == 0:
            return
        self._write(episode, number, starts, loud)
        for shelf in self._shelves:
            self._learn_keys(shelf, number, starts)
        self._put_weights(number, starts, weights)
        for shelf in self._shelves[1:]:
            shelf.mutate({shelf.keys[number, int(start)]: 1.0 for start in starts})
        self._follow_total()

    def _check_columns(self, episode: Episode) -> None:
        columns = tuple(sorted(_frame(episode, 0, 0, {})))
        self._columns = self._columns or columns
        if columns != self._columns:
            raise ValueError(
                f"replay table: episode {episode.header.id!r} has columns {columns}, the window has {self._columns}"
            )

    def _write(self, episode: Episode, number: int, starts: np.ndarray, loud: list[float]) -> None:
        horizon, wanted = self._index.horizon, set(starts.tolist())
        image_rows = {int(step): row for row, step in enumerate(episode.image_steps)}
        with self._client.trajectory_writer(num_keep_alive_refs=horizon) as writer:
            for camera in episode.images:  # one JPEG is read at a time, so it is packed alone
                writer.configure((_CAMERA + camera,), num_keep_alive_refs=horizon, max_chunk_length=1)
            for step in range(episode.num_frames):
                writer.append(_frame(episode, number, step, image_rows))
                if step - horizon + 1 in wanted:
                    self._create_items(writer, horizon, loud)
                if step % _FLUSH_EVERY_FRAMES == 0:
                    writer.flush(timeout_ms=_FLUSH_DEADLINE_MS)
            for start in range(max(0, episode.num_frames - horizon + 1), episode.num_frames):
                if start in wanted:
                    self._create_items(writer, episode.num_frames - start, loud)
            writer.flush(timeout_ms=_FLUSH_DEADLINE_MS)

    def _create_items(self, writer: Any, back: int, loud: list[float]) -> None:
        """Items of the chunk that starts `back` frames before the writer's end."""
        head = slice(-back, None if back == 1 else -back + 1)
        history = writer.history  # built anew at every look
        columns = {name: history[name][head] for name in self._columns}
        columns["action"] = history["action"][-back:]
        for shelf, priority in zip(self._shelves, loud, strict=False):
            writer.create_item(shelf.name, priority, columns)

    def _learn_keys(self, shelf: _Shelf, number: int, starts: np.ndarray) -> None:
        missing = set(starts.tolist())
        for _ in range(_MAX_ROUNDS):
            seen = {}
            for key, columns in shelf.draws(max(8, len(missing))):
                start = self._address(columns)
                if start[0] == number and start[1] in missing:
                    shelf.keys[start] = key
                    missing.discard(start[1])
                    seen[key] = 0.0
            shelf.mutate(seen)
            if not missing:
                return
        raise RuntimeError(
            f"reverb table {shelf.name!r}: {len(missing)} chunks of episode {self._ids[number]!r} did "
            f"not show in {_MAX_ROUNDS} rounds; restart the store, it rebuilds the table from disk"
        )

    def _address(self, columns: list[np.ndarray]) -> tuple[int, int]:
        return (int(columns[self._columns.index("episode")][0]), int(columns[self._columns.index("step")][0]))

    def _put_weights(self, number: int, starts: np.ndarray, weights: np.ndarray) -> None:
        shelf = self._shelves[0]
        shelf.mutate({shelf.keys[number, int(start)]: float(w) for start, w in zip(starts, weights, strict=True)})

    def remove_episode(self, episode: str) -> None:
        entry = self._index.remove(episode)
        for shelf in self._shelves:
            shelf.delete(entry.number, entry.starts)
        del self._ids[entry.number]
        self._follow_total()

    def over_window(self, window_frames: int) -> tuple[str, ...]:
        return self._index.over_window(window_frames)

    def evict(self, window_frames: int) -> tuple[str, ...]:
        gone = self.over_window(window_frames)
        for episode in gone:
            self.remove_episode(episode)
        return gone

    def set_weights(self, updates: Iterable[WeightUpdate]) -> None:
        updates = list(updates)
        self._index.set_weights(updates)
        changed = {}
        for episode, first, weights in updates:
            entry, keys = self._index.entry(episode), self._shelves[0].keys
            for start, weight in zip(entry.starts[first : first + len(weights)], weights, strict=True):
                changed[keys[entry.number, int(start)]] = float(weight)
        self._shelves[0].mutate(changed)
        self._follow_total()

    def _follow_total(self) -> None:
        """Where all weights vanished, residues would decide the draws: Reverb is told 1 for every chunk until one
        weighs something again."""
        vanished = self.chunks > 0 and self._index.total <= 0.0
        if not vanished and not self._flattened:
            return
        self._flattened = vanished
        entries = [self._index.entry(episode) for episode in self.episodes]
        keys = self._shelves[0].keys
        self._shelves[0].mutate(
            {
                keys[entry.number, int(start)]: 1.0 if vanished else float(weight)
                for entry in entries
                for start, weight in zip(entry.starts, entry.weights, strict=True)
            }
        )

    def weights(self, episode: str) -> np.ndarray:
        return self._index.entry(episode).weights.copy()

    def sample(self, n: int, seed: int) -> ChunkBatch:
        if self.chunks == 0:
            raise TableEmpty(f"replay table `{self.name}`: no chunk in {len(self.episodes)} episodes")
        num_uniform = int(np.random.default_rng(seed).binomial(n, self._uniform_share))
        rows = self._draw(self._shelves[0], n - num_uniform)
        if num_uniform:
            rows += self._draw(self._shelves[1], num_uniform)
        return make_batch(rows, self._index.horizon, self._index.version, self._probabilities(rows))

    def _draw(self, shelf: _Shelf, n: int) -> list[ChunkData]:
        rows: list[ChunkData] = []
        any_weight = self._index.total > 0.0 and shelf is self._shelves[0]
        for _ in range(_MAX_ROUNDS):
            if len(rows) == n:
                return rows
            drawn = [self._chunk(columns) for _, columns in shelf.draws(n - len(rows))]
            rows += [row for row in drawn if not any_weight or self._weight(row.key) > 0.0]
        raise RuntimeError(
            f"reverb table {shelf.name!r}: {n - len(rows)} of {n} draws had no weight after "
            f"{_MAX_ROUNDS} rounds; restart the store, it rebuilds the table from disk"
        )

    def _chunk(self, columns: list[np.ndarray]) -> ChunkData:
        data = dict(zip(self._columns, columns, strict=True))
        key = (self._ids[int(data["episode"][0])], int(data["step"][0]))
        images = {name[len(_CAMERA) :]: data[name][0] for name in self._columns if name.startswith(_CAMERA)}
        objects = data["objects"][0] if "objects" in data else None
        return ChunkData(key, data["state"][0], data["action"], objects, images)

    def _weight(self, key: tuple[str, int]) -> float:
        entry = self._index.entry(key[0])
        return float(entry.weights[np.searchsorted(entry.starts, key[1])])

    def _probabilities(self, rows: list[ChunkData]) -> np.ndarray:
        weight = np.array([self._weight(row.key) for row in rows])
        return draw_probabilities(weight, self._index.total, self.chunks, self._uniform_share)

    def native_weights(self, draws: int) -> dict[tuple[str, int], float]:
        """The weights that Reverb itself reports for what `draws` draws show: an audit of the books."""
        sampler = reverb.Client(f"localhost:{self._server.port}").sample("weighted", draws, emit_timesteps=False)
        return {self._chunk(sample.data).key: float(sample.info.priority) for sample in sampler}

    def close(self) -> None:
        self._server.stop()


def _reverb_table(name: str) -> Any:
    return reverb.Table(
        name,
        sampler=reverb.selectors.Prioritized(1.0),
        remover=reverb.selectors.Fifo(),
        max_size=2**31 - 1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def _frame(episode: Episode, number: int, step: int, image_rows: dict[int, int]) -> dict[str, np.ndarray]:
    """One step as Reverb's columns. A JPEG is a string tensor (object dtype: numpy's `S` would strip zero bytes)."""
    frame = {
        "episode": np.int64(number),
        "step": np.int32(step),
        "state": episode.state[step],
        "action": episode.action[step],
    }
    if episode.objects is not None:
        frame["objects"] = episode.objects[step]
    row = image_rows.get(step)
    for camera, jpegs in episode.images.items():
        frame[_CAMERA + camera] = np.array(b"" if row is None else jpegs[row], dtype=object)
    return frame
