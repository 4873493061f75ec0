"""A store's intake: takes episodes in pieces, makes them durable, then acknowledges. Nothing is stored twice.

<folder>/incoming/<id>.<sha>.part  a transfer under way; it resumes at its length
<folder>/incoming/<id>.episode     complete; stays until the store moves it on
<folder>/stored.jsonl              every id ever stored, with its SHA-256: the write-ahead ledger
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from cel_jax.bus.arrays import size_bytes
from cel_jax.bus.durable import check_id, file_sha256, free_bytes, remove_durably, rename_durably, require_space
from cel_jax.bus.errors import BoundReached, Conflict, WireError
from cel_jax.bus.message import Reply, Request
from cel_jax.bus.server import Handler

OnEpisode = Callable[[str, pathlib.Path], None]
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Offer:
    """One announced episode."""

    id: str
    total_bytes: int
    sha256: str


class EpisodeReceiver:
    """Handlers offer, piece, commit and stats; `on_episode(id, path)` is called once an episode is durable.

    The callback runs on the server's thread: it should only queue. frames: how many frames this store holds, which
    couriers balance. Call `recover` after a restart, before serving.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        on_episode: OnEpisode,
        *,
        frames: Callable[[], int] = lambda: 0,
        max_episode_bytes: int = 4 << 30,
        max_open: int = 1024,
        spare_bytes: int = 256 << 20,
        free: Callable[[pathlib.Path], int] = free_bytes,
    ) -> None:
        self._incoming = pathlib.Path(folder) / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._ledger_path = pathlib.Path(folder) / "stored.jsonl"
        self._on_episode, self._frames, self._free = on_episode, frames, free
        self._max_bytes, self._max_open, self._spare_bytes = max_episode_bytes, max_open, spare_bytes
        self._offers: dict[str, Offer] = {}
        self._stored = _read_ledger(self._ledger_path)
        for path in sorted(self._incoming.glob("*.episode")):
            if path.stem not in self._stored:  # a crash came between the rename and the ledger
                self._enter(path.stem, file_sha256(path), path.stat().st_size)

    def handlers(self) -> dict[str, Handler]:
        """Operations of an intake, by name."""
        return {"offer": self.offer, "piece": self.piece, "commit": self.commit, "stats": self.stats}

    def recover(self) -> list[str]:
        """Hands the episodes that are still in `incoming` to `on_episode` again; returns their ids."""
        paths = sorted(self._incoming.glob("*.episode"))
        for path in paths:
            self._on_episode(path.stem, path)
        return [path.stem for path in paths]

    @property
    def stored_ids(self) -> frozenset[str]:
        """Every id that was ever acknowledged."""
        return frozenset(self._stored)

    def offer(self, request: Request) -> Reply:
        """Header: id, total_bytes, sha256. Replies {status: stored} or {status: accept, offset}."""
        offer = self._parse(request)
        known = self._stored.get(offer.id)
        if known is not None:
            return self._known(offer, known)
        self._admit(offer)
        self._offers[offer.id] = offer
        return Reply({"status": "accept", "offset": self._length(offer)})

    def piece(self, request: Request) -> Reply:
        """Header: id, offset; one buffer. Appends when the offset fits; replies the offset that it wants next."""
        offer, offset = self._offered(request), request.header.get("offset")
        have, path = self._length(offer), self._part(offer)
        size = size_bytes(request.buffers)
        if offset == have and have + size <= offer.total_bytes:
            with path.open("ab") as file:
                for buffer in request.buffers:
                    file.write(buffer)
            have += size
        return Reply({"offset": have})

    def commit(self, request: Request) -> Reply:
        """Header: id. Replies {status: stored} only when the episode and the ledger are on disk."""
        if _id(request.header) in self._stored:
            return Reply({"status": "stored"})
        offer = self._offered(request)
        path, final = self._part(offer), self._incoming / f"{offer.id}.episode"
        if self._length(offer) != offer.total_bytes:
            raise WireError(f"episode {offer.id!r}: {self._length(offer)} of {offer.total_bytes} bytes are here")
        if file_sha256(path) != offer.sha256:
            remove_durably(path)
            raise Conflict(f"episode {offer.id!r}: SHA-256 differs from the offered one; dropped, send it again")
        rename_durably(path, final)
        self._enter(offer.id, offer.sha256, offer.total_bytes)
        del self._offers[offer.id]
        self._on_episode(offer.id, final)
        return Reply({"status": "stored"})

    def stats(self, request: Request) -> Reply:
        """Frames held, episodes ever stored, open transfers, free bytes."""
        counts = {"frames": int(self._frames()), "episodes": len(self._stored), "open": len(self._offers)}
        return Reply({**counts, "free_bytes": self._free(self._incoming)})

    def _parse(self, request: Request) -> Offer:
        head = request.header
        total, sha = head.get("total_bytes"), head.get("sha256")
        if type(total) is not int or not 0 < total <= self._max_bytes:
            raise WireError(f"expected total_bytes of 1 to {self._max_bytes}, got {total!r}")
        if not isinstance(sha, str) or not _SHA.fullmatch(sha):
            raise WireError(f"expected sha256 as 64 hex digits, got {sha!r:.80}")
        return Offer(_id(head), total, sha)

    def _known(self, offer: Offer, sha256: str) -> Reply:
        if sha256 != offer.sha256:
            raise Conflict(f"episode {offer.id!r} is stored with other content; ids are never used again")
        return Reply({"status": "stored"})

    def _admit(self, offer: Offer) -> None:
        if offer.id not in self._offers and len(self._offers) >= self._max_open:
            raise BoundReached(f"store holds its bound of {self._max_open} open transfers; offer {offer.id!r} later")
        others = [open for open in self._offers.values() if open.id != offer.id]
        left = sum(open.total_bytes - self._length(open) for open in [*others, offer])
        what = f"episode {offer.id!r} of {offer.total_bytes} bytes and {len(others)} open transfers"
        require_space(self._incoming, left + self._spare_bytes, self._free(self._incoming), what)

    def _offered(self, request: Request) -> Offer:
        episode_id = _id(request.header)
        if episode_id not in self._offers:
            raise WireError(f"episode {episode_id!r} was not offered since this store started; offer it again")
        return self._offers[episode_id]

    def _part(self, offer: Offer) -> pathlib.Path:
        return self._incoming / f"{offer.id}.{offer.sha256[:16]}.part"

    def _length(self, offer: Offer) -> int:
        path = self._part(offer)
        return path.stat().st_size if path.exists() else 0

    def _enter(self, episode_id: str, sha256: str, total_bytes: int) -> None:
        line = json.dumps({"id": episode_id, "sha256": sha256, "bytes": total_bytes})
        with self._ledger_path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._stored[episode_id] = sha256


def _id(head: Any) -> str:
    try:
        return check_id(head.get("id"))
    except ValueError as error:
        raise WireError(str(error)) from error


def _read_ledger(path: pathlib.Path) -> dict[str, str]:
    """Id -> SHA-256. A last line that a crash cut off is removed: its episode is still in `incoming`."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    entries = [json.loads(line) for line in whole.splitlines()]
    return {entry["id"]: entry["sha256"] for entry in entries}
