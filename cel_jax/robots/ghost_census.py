"""The final count of a run with ghosts: what their ledgers promise against what spools, stores and shards hold.

Episodes are compared by id and by content (the SHA-256 of the states and executed actions in order), never by the
system's own counters. Count a run after its end, when nothing writes any more.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cel_jax.bus.records import RecordError, read_episode
from cel_jax.data.episode import Episode
from cel_jax.data.episode_codec import decode_episode
from cel_jax.data.frame_log import decode_frame, decode_label, frames_to_episode
from cel_jax.data.lerobot_v3 import ShardError, read_shard
from cel_jax.robots.ghost_ledger import read_ledgers

SETTLED = ("successes", "failures", "discards")


@dataclasses.dataclass(frozen=True)
class Held:
    """One copy of an episode. place: a spool, or a store; form: `file` or `shard`."""

    id: str
    digest: str
    place: str
    form: str


@dataclasses.dataclass(frozen=True)
class Census:
    """labelled: what the ledgers promise. lost: ids promised and nowhere whole. duplicated: ids that two stores hold,
    or one store twice in one form, or one content under two ids. altered: ids whose content differs from the ledger's.
    unknown: held, but no ghost ever finished them. stale: stale actions executed. unreadable: files."""

    labelled: int
    held: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    altered: tuple[str, ...]
    unknown: tuple[str, ...]
    stale: int
    unreadable: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.altered or self.unknown or self.stale or self.unreadable)


def take_census(run_dir: Path, *joined: Path) -> Census:
    """Counts a run that has ended, with the folders of the nodes that joined it."""
    ledgers = {station: facts for folder in (run_dir, *joined) for station, facts in read_ledgers(folder).items()}
    promised, finished, stale = _promises(ledgers)
    unreadable: list[str] = []
    spooled = [one for folder in (run_dir, *joined) for one in _spooled(folder, unreadable)]
    held = spooled + list(_stored(run_dir, unreadable))
    by_id: dict[str, list[Held]] = collections.defaultdict(list)
    for one in held:
        by_id[one.id].append(one)
    altered = sorted({one.id for one in held if one.id in promised and one.digest != promised[one.id]})
    unknown = sorted({one.id for one in held if one.digest not in finished})
    lost = tuple(sorted(set(promised) - set(by_id)))
    return Census(
        len(promised), len(by_id), lost, _duplicates(by_id), tuple(altered), tuple(unknown), stale, tuple(unreadable)
    )


def _promises(ledgers: dict[str, list[dict[str, Any]]]) -> tuple[dict[str, str], set[str], int]:
    """Labelled episodes (id -> digest), digests of all finished ones, and how many stale actions were executed."""
    facts = [fact for facts in ledgers.values() for fact in facts]
    promised = {fact["episode"]: fact["digest"] for fact in facts if fact["fact"] == "labelled"}
    finished = {fact["digest"] for fact in facts if fact["fact"] == "verdict"}
    return promised, finished, sum(fact["fact"] == "stale" for fact in facts)


def _duplicates(by_id: dict[str, list[Held]]) -> tuple[str, ...]:
    """A spool may still hold what its store has (the acknowledgement was on its way): that is no second copy."""
    found = set()
    owners: dict[str, str] = {}
    for id, copies in by_id.items():
        stored = [copy for copy in copies if not copy.place.startswith("spool/")]
        forms = collections.Counter((copy.place, copy.form) for copy in stored)
        if len({copy.place for copy in stored}) > 1 or max(forms.values(), default=0) > 1:
            found.add(id)
        for copy in copies:
            if owners.setdefault(copy.digest, id) != id:
                found.add(id)
    return tuple(sorted(found))


def _spooled(run_dir: Path, unreadable: list[str]) -> Iterator[Held]:
    for path in sorted((run_dir / "spool").glob("*/*.labelled")):
        yield from _record_file(path, f"spool/{path.parent.name}", run_dir, unreadable)


def _stored(run_dir: Path, unreadable: list[str]) -> Iterator[Held]:
    for store in sorted((run_dir / "experience").glob("*")):
        for path in sorted((store / "incoming").glob("*.episode")):
            yield from _record_file(path, store.name, run_dir, unreadable)
        for kind in SETTLED:
            for path in sorted((store / kind).glob("*.cel")):
                yield _held(decode_episode(path.read_bytes()), store.name, "file")
        yield from _sharded(store, run_dir, unreadable)


def _sharded(store: Path, run_dir: Path, unreadable: list[str]) -> Iterator[Held]:
    for shard in sorted(path for path in (store / "shards").glob("*") if path.is_dir() and "." not in path.name):
        try:
            for episode in read_shard(shard):
                yield _held(episode, store.name, "shard")
        except (ShardError, OSError) as error:
            unreadable.append(f"{shard.relative_to(run_dir)}: {error}")


def _record_file(path: Path, place: str, run_dir: Path, unreadable: list[str]) -> Iterator[Held]:
    try:
        records = read_episode(path)
    except RecordError as error:
        unreadable.append(f"{path.relative_to(run_dir)}: {error}")
        return
    header, label = decode_label(records.label)
    yield _held(frames_to_episode(header, label, [decode_frame(data) for data in records.frames]), place, "record")


def _held(episode: Episode, place: str, form: str) -> Held:
    return Held(episode.header.id, episode_digest(episode), place, form)


def episode_digest(episode: Episode) -> str:
    """As the ghost computes it while it acts."""
    digest = hashlib.sha256()
    for state, action in zip(episode.state, episode.action, strict=True):
        digest.update(np.asarray(state, np.float32).tobytes() + np.asarray(action, np.float32).tobytes())
    return digest.hexdigest()
