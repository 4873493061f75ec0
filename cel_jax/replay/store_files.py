"""The store's folder: labelled episodes as files, and shards. Nothing here knows of weights.

    incoming/ successes/ failures/ discards/ rejected/ shards/ events.log

An episode's file is named by its id, so a repeated delivery meets itself. Moves are durable.
"""

from __future__ import annotations

import os
import urllib.parse
from collections import OrderedDict
from collections.abc import Container, Iterator
from pathlib import Path

from cel_jax.data.episode import Episode, Outcome
from cel_jax.data.episode_codec import decode_episode
from cel_jax.data.lerobot_v3 import TEMPORARY, ShardError, check_shard, fsync_folder, read_shard

FOLDER_OF = {Outcome.SUCCESS.value: "successes", Outcome.FAILURE.value: "failures", Outcome.DISCARD.value: "discards"}
SUFFIX = ".cel"
_CACHED_EPISODES = 32


def episode_filename(episode: str) -> str:
    """A file name for any id: characters that a path cannot hold are escaped."""
    return urllib.parse.quote(episode, safe="") + SUFFIX


class StoreFiles:
    """Reads and moves the episodes of one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards = folder / "shards"
        for name in ("incoming", "rejected", "shards", *FOLDER_OF.values()):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._cache: OrderedDict[str, Episode] = OrderedDict()

    def path(self, kind: str, episode: str) -> Path:
        return self.folder / FOLDER_OF[kind] / episode_filename(episode)

    def settle(self, source: Path, kind: str, episode: Episode) -> None:
        """Moves a written file to its class folder; on return it is durable there."""
        move(source, self.path(kind, episode.header.id))
        self._remember(episode)

    def load(self, kind: str, episode: str, shard: str | None) -> Episode:
        """An episode from its own file, else from its shard. Raises FileNotFoundError or what the readers raise."""
        if episode in self._cache:
            self._cache.move_to_end(episode)
            return self._cache[episode]
        path = self.path(kind, episode)
        if path.is_file():
            return self._remember(decode_episode(path.read_bytes()))
        if shard is None:
            raise FileNotFoundError(f"store: episode {episode!r} has neither {path} nor a shard")
        return self._from_shard(episode, shard)

    def _from_shard(self, episode: str, shard: str) -> Episode:
        for found in read_shard(self.shards / shard):
            self._remember(found)
        if episode not in self._cache:
            raise ShardError(f"shard {self.shards / shard}: does not hold episode {episode!r}")
        return self._cache[episode]

    def _remember(self, episode: Episode) -> Episode:
        self._cache[episode.header.id] = episode
        self._cache.move_to_end(episode.header.id)
        while len(self._cache) > _CACHED_EPISODES:
            self._cache.popitem(last=False)
        return episode

    def forget(self, episode: str) -> None:
        """Deletes the file of a success that a shard holds now."""
        self.path("success", episode).unlink(missing_ok=True)

    def unknown(self, name: str, known: Container[str]) -> list[Path]:
        """Files in a folder whose episode is not among `known`, oldest first."""
        return [path for path in self.files(name) if urllib.parse.unquote(path.name[: -len(SUFFIX)]) not in known]

    def files(self, name: str) -> list[Path]:
        """Whole episode files in a folder, oldest first."""
        found = (self.folder / name).glob("*" + SUFFIX)
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def reject(self, path: Path) -> Path:
        """Sets a file aside that cannot be read."""
        target = self.folder / "rejected" / path.name
        move(path, target)
        return target

    def scan_shards(self) -> Iterator[tuple[str, str]]:
        """(name, problem) of every shard folder in order of name; problem is empty for a whole one."""
        for path in sorted(self.shards.iterdir()):
            try:
                check_shard(path)
            except (ShardError, OSError) as error:
                yield path.name, str(error)
            else:
                yield path.name, ""

    def next_shard_name(self) -> str:
        """Beyond every name in use, whole or not."""
        names = [path.name.removeprefix(TEMPORARY) for path in self.shards.iterdir()]
        numbers = [int(name.removeprefix("shard-")) for name in names if name.startswith("shard-")]
        return f"shard-{max(numbers, default=-1) + 1:06d}"


def move(source: Path, target: Path) -> None:
    """A durable move within one file system."""
    with open(source, "rb") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    fsync_folder(target.parent)
    fsync_folder(source.parent)
