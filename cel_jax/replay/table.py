"""ChunkTable: where the active window of chunks lives and is sampled from.

    table = make_table("auto", horizon=30)
    table.insert_episode(episode, starts, weights)
    table.set_weights(priorities.apply(...))
    batch = table.sample(128, seed=7)

Two tables keep one contract (one conformance suite): `MemoryTable` (numpy, here in `memory_table`) and `ReverbTable`.
Weights are stored weights; a common factor does not matter to a table.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import numpy as np

from cel_jax.data.episode import Episode
from cel_jax.replay.chunks import ChunkBatch
from cel_jax.replay.priorities import WeightUpdate


class TableEmpty(RuntimeError):
    """There is no chunk to draw. The caller waits in a named state until experience arrives."""


class ChunkTable(Protocol):
    """The window of chunks. Frames are stored once and shared by overlapping chunks; threads take turns."""

    name: str
    seeded: bool  # True: `sample` repeats under the same seed and contents

    @property
    def frames(self) -> int:
        """Frames in the window."""

    @property
    def chunks(self) -> int:
        """Chunks in the window."""

    @property
    def episodes(self) -> tuple[str, ...]:
        """Episode ids, oldest first."""

    def keys(self) -> list[tuple[str, int]]:
        """(episode id, start frame) of every chunk, oldest episode first."""

    def insert_episode(self, episode: Episode, starts: np.ndarray, weights: np.ndarray) -> None:
        """Takes int32 [C] rising starts and float64 [C] weights. Raises `SourceError` for what is no target."""

    def remove_episode(self, episode: str) -> None:
        """Drops an episode and all its chunks."""

    def over_window(self, window_frames: int) -> tuple[str, ...]:
        """The oldest whole episodes to drop so that at most `window_frames` remain; the newest always stays."""

    def evict(self, window_frames: int) -> tuple[str, ...]:
        """Drops what `over_window` names, and returns it."""

    def set_weights(self, updates: Iterable[WeightUpdate]) -> None:
        """Writes stored weights of some chunks."""

    def weights(self, episode: str) -> np.ndarray:
        """float64 [C] stored weights of an episode."""

    def sample(self, n: int, seed: int) -> ChunkBatch:
        """n chunks in proportion to their weights, with replacement. Raises `TableEmpty`."""

    def close(self) -> None:
        """Frees what the table holds."""


Table = TypeVar("Table")


def one_at_a_time(table: type[Table]) -> type[Table]:
    """A class decorator: calls of the contract's methods from several threads take turns."""
    made = table.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self._turn = threading.RLock()
        made(self, *args, **kwargs)

    setattr(table, "__init__", init)  # noqa: B010 mypy refuses the plain assignment
    for name in (
        "keys",
        "insert_episode",
        "remove_episode",
        "over_window",
        "evict",
        "set_weights",
        "weights",
        "sample",
    ):
        setattr(table, name, _in_turn(getattr(table, name)))
    return table


def _in_turn(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._turn:
            return method(self, *args, **kwargs)

    return call


def reverb_is_installed() -> bool:
    return importlib.util.find_spec("reverb") is not None


def make_table(kind: str, horizon: int, uniform_share: float = 0.0) -> ChunkTable:
    """`reverb`, `memory`, or `auto`: Reverb where it is installed. Prints the choice."""
    if kind not in ("auto", "reverb", "memory"):
        raise ValueError(f"replay table {kind!r}: expected `auto`, `reverb` or `memory`")
    if kind == "reverb" and not reverb_is_installed():
        raise RuntimeError(
            "replay table `reverb`: dm-reverb is not installed here; start the store in the environment "
            "of requirements/reverb.txt, or take --config.replay.table=memory"
        )
    chosen = "reverb" if kind == "reverb" or (kind == "auto" and reverb_is_installed()) else "memory"
    print(f"replay table: {chosen} (asked for {kind})", flush=True)
    if chosen == "reverb":
        from cel_jax.replay.reverb_table import ReverbTable  # imports TensorFlow

        return ReverbTable(horizon, uniform_share)
    from cel_jax.replay.memory_table import MemoryTable

    return MemoryTable(horizon, uniform_share)
