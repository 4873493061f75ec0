"""What the desk keeps in run.db: labels with author and time, emergency stops, and who ordered what."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Sequence

from cel_jax.console import labels
from cel_jax.console.desk import Finished
from cel_jax.console.labels import LabelRefused, LabelState, UnknownEpisode
from cel_jax.data.episode import Label, Outcome
from cel_jax.recovery import rundb, rundb_fleet
from cel_jax.recovery.stations import Role
from cel_jax.recovery.status import Status

STOP_KEY = "stop:"


class Ledger:
    """Every write is on disk when its method returns. Raises RunDbError or sqlite3.Error where it is not."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("PRAGMA busy_timeout = 1000")  # a stop must not wait behind another writer for long

    def station_names(self) -> list[str]:
        """The robots' stations that take part."""
        query = "SELECT name FROM stations WHERE role = ? AND desired != 'offline' ORDER BY position, name"
        return [row["name"] for row in self._db.execute(query, (Role.ENVIRONMENT.value,))]

    def status(self) -> Status:
        return rundb_fleet.read_status(self._db)

    # -- labels ------------------------------------------------------------------------------------------------------

    def admit(self, one: Finished, station: str, now_s: float) -> LabelState:
        """A finished episode as it stands on record. One of another machine is entered first."""
        if not rundb.episodes(self._db, "id = ?", (one.episode,)):
            rundb.start_episode(self._db, one.episode, station, one.worker, one.robot, one.start_s)
            rundb.end_episode(self._db, one.episode, one.steps, one.policy_version, one.end_s)
        label = self.label_of(one.episode)
        found = labels.waiting(one.episode, station, now_s)
        if label is not None:
            found = labels.labelled(one.episode, station, label)
        return dataclasses.replace(found, suggests=one.suggests)

    def label_of(self, episode: str) -> Label | None:
        """The label that holds."""
        query = "SELECT * FROM labels WHERE episode = ? AND undone_s IS NULL"
        row = self._db.execute(query, (episode,)).fetchone()
        return None if row is None else Label(Outcome(row["outcome"]), row["author"], row["time_s"], row["reason"])

    def write(self, episode: str, label: Label) -> None:
        rundb.label_episode(self._db, episode, label.outcome.value, label.author, label.reason, label.time_s)

    def undo(self, episode: str, author: str, now_s: float) -> None:
        rundb.undo_label(self._db, episode, now_s)
        rundb.add_event(self._db, "label undone", f"{episode} by {author}", now_s=now_s)

    def why_not(self, episode: str) -> LabelRefused:
        """Why an episode that no station holds cannot be labelled or undone."""
        if not rundb.episodes(self._db, "id = ?", (episode,)):
            return UnknownEpisode(f"episode {episode!r:.130}: unknown to this run")
        label = self.label_of(episode)
        if label is not None:
            return LabelRefused(labels.already(episode, label, final=True))
        return LabelRefused(
            f"episode {episode}: it did not finish, or its station does not report; nothing was changed"
        )

    # -- orders ------------------------------------------------------------------------------------------------------

    def stops(self) -> dict[str, tuple[str, float]]:
        """station -> who stopped it, and when. A stop outlives every process."""
        rows = self._db.execute("SELECT key, value FROM run WHERE key LIKE 'stop:%' AND value != ''")
        return {row["key"].removeprefix(STOP_KEY): tuple(json.loads(row["value"])) for row in rows}

    def stop(self, stations: Sequence[str], author: str, now_s: float) -> None:
        with rundb.transaction(self._db):
            for name in stations:
                rundb.set_value(self._db, f"{STOP_KEY}{name}", json.dumps([author, now_s]))
                self.note("emergency stop", name, author)

    def release(self, stations: Sequence[str], author: str) -> None:
        with rundb.transaction(self._db):
            for name in stations:
                rundb.set_value(self._db, f"{STOP_KEY}{name}", "")
                self.note("emergency stop released", name, author)

    def note(self, kind: str, station: str, author: str) -> None:
        rundb.add_event(self._db, kind, f"by {author}", station=station)
