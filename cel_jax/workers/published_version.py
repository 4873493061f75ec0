"""The number of the last published policy, for readers that need no jax."""

from __future__ import annotations

import sqlite3

from cel_jax.recovery import rundb

VERSION_KEY = "published_version"


def published_version(db: sqlite3.Connection) -> int:
    """0: nothing was published yet; robots run the start policy."""
    return int(rundb.get_value(db, VERSION_KEY, "0"))


def set_published_version(db: sqlite3.Connection, version: int) -> None:
    rundb.set_value(db, VERSION_KEY, str(version))
