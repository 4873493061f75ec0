"""The frames of a window in flat arrays, each stored once: a chunk is a view from its first frame on.

After an episode its last action is repeated H - 1 times, so that every chunk is H rows, whole or padded. Rows of
episodes that left are reclaimed when they are the larger part.
Shape letters: R rows, B batch, H horizon, S state, A action, O objects, P numbers per pose.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.data.episode import Episode

LEAST_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an episode lies: its first row and first captured image, and how many it has of each (padding counts)."""

    row: int
    rows: int
    image: int
    images: int


class FrameStore:
    """`columns`: state, action and, in `state` mode, objects, as flat arrays."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._columns: dict[str, np.ndarray] = {}
        self._jpegs: dict[str, list[bytes]] = {}
        self._places: dict[str, Place] = {}
        self._used = self._used_images = self._live = 0

    def place(self, episode: str) -> Place:
        return self._places[episode]

    def add(self, episode: Episode) -> None:
        """Copies the numbers and keeps the JPEG bytes. Raises ValueError where its columns are not the window's."""
        parts = {"state": episode.state, "action": episode.action, "objects": episode.objects}
        arrays = {name: _padded(part, self._horizon) for name, part in parts.items() if part is not None}
        self._check(episode, arrays)
        rows, images = episode.num_frames + self._horizon - 1, len(episode.image_steps)
        self._reserve(arrays, rows)
        for name, array in arrays.items():
            self._columns[name][self._used : self._used + rows] = array
        for camera, jpegs in episode.images.items():
            self._jpegs.setdefault(camera, []).extend(jpegs)
        self._places[episode.header.id] = Place(self._used, rows, self._used_images, images)
        self._used, self._used_images, self._live = self._used + rows, self._used_images + images, self._live + rows

    def _check(self, episode: Episode, arrays: dict[str, np.ndarray]) -> None:
        if not self._places:
            self._columns, self._jpegs, self._used, self._used_images = {}, {}, 0, 0
            return
        found = {name: array.shape[1:] for name, array in arrays.items()}, set(episode.images)
        expected = {name: column.shape[1:] for name, column in self._columns.items()}, set(self._jpegs)
        if found != expected:
            raise ValueError(
                f"replay table: episode {episode.header.id!r} has columns {found[0]} and cameras {sorted(found[1])}, "
                f"the window has {expected[0]} and {sorted(expected[1])}"
            )

    def _reserve(self, arrays: dict[str, np.ndarray], rows: int) -> None:
        for name, array in arrays.items():
            column = self._columns.get(name, np.zeros((0, *array.shape[1:]), array.dtype))
            missing = self._used + rows - len(column)
            if missing > 0:
                more = max(missing, len(column), LEAST_ROWS)
                column = np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)])
            self._columns[name] = column

    def remove(self, episode: str) -> None:
        self._live -= self._places.pop(episode).rows
        if self._used - self._live > max(self._live, LEAST_ROWS):
            self._compact()

    def _compact(self) -> None:
        rows = _indices([(place.row, place.rows) for place in self._places.values()])
        images = _indices([(place.image, place.images) for place in self._places.values()]).tolist()
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        self._jpegs = {camera: [jpegs[i] for i in images] for camera, jpegs in self._jpegs.items()}
        row = image = 0
        for key, place in self._places.items():
            self._places[key] = dataclasses.replace(place, row=row, image=image)
            row, image = row + place.rows, image + place.images
        self._used, self._used_images = row, image

    def state(self, rows: np.ndarray) -> np.ndarray:
        """float32 [B, S]."""
        return self._columns["state"][rows]

    def objects(self, rows: np.ndarray) -> np.ndarray | None:
        """float32 [B, O, P], or None without poses."""
        return self._columns["objects"][rows] if "objects" in self._columns else None

    def actions(self, rows: np.ndarray) -> np.ndarray:
        """float32 [B, H, A]: one copy of H adjoining rows for each of `rows`."""
        column = self._columns["action"]
        width = column.shape[1]
        step, item = column.strides
        shape = (len(column) - self._horizon + 1, self._horizon * width)
        windows = np.lib.stride_tricks.as_strided(column, shape, (step, item), writeable=False)
        return windows[rows].reshape(len(rows), self._horizon, width)

    def images(self, positions: np.ndarray) -> dict[str, list[bytes]]:
        """camera -> B JPEG byte strings."""
        wanted = positions.tolist()
        return {camera: [jpegs[i] for i in wanted] for camera, jpegs in self._jpegs.items()}


def _padded(rows: np.ndarray, horizon: int) -> np.ndarray:
    """[T, ...] -> [T + H - 1, ...], the last row repeated."""
    return np.concatenate([rows, np.repeat(rows[-1:], horizon - 1, axis=0)])


def _indices(ranges: list[tuple[int, int]]) -> np.ndarray:
    """int64: every index of the (start, count) ranges, in order."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(start, start + count) for start, count in ranges)])
