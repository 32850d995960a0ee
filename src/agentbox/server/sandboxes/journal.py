# SPDX-License-Identifier: MIT
"""What a keeper writes down, so that the next one knows it: sandboxes and their commands, in SQLite.

Writes are made where they happen: a commit in the write-ahead log costs no wait for the disk. A crash of the keeper
loses nothing; a crash of the machine may lose the last moments, and with them nothing but commands that ended anyway.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbox.errors import ConfigError

FILE = "sandboxes.db"
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sandboxes (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    facts TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commands (
    sandbox_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    facts TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, number)
) WITHOUT ROWID;
"""
# Pages of the log after which it is folded into the file; larger than one burst, so that few commands wait for it.
_FOLDED_PAGES = 4000


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """A sandbox as it was written down."""

    id: str
    owner: str
    created_at: float
    facts: dict[str, Any]


class Journal:
    """The journal of one state directory; only its keeper has it open. Not for several threads."""

    def __init__(self, state: Path) -> None:
        """Raises ConfigError when it cannot be used."""
        path = state / FILE
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(f"PRAGMA wal_autocheckpoint={_FOLDED_PAGES}")
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise ConfigError(
                    f"{path} was written by a newer agentbox (version {version} of the journal)",
                    hint="use that version, or another AGENTBOX_STATE_DIR",
                )
            self._database.executescript(_SCHEMA)
            self._database.execute(f"PRAGMA user_version={_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the journal of sandboxes {path} cannot be used: {error}",
                hint="move it away to begin a new one: its sandboxes are then unknown, their files stay in durable/",
            ) from error

    def sandboxes(self) -> list[SandboxRow]:
        """All of them, the oldest first."""
        found = self._database.execute("SELECT id, owner, created_at, facts FROM sandboxes ORDER BY created_at, id")
        return [SandboxRow(row[0], row[1], row[2], json.loads(row[3])) for row in found]

    def commands(self, sandbox_id: str) -> list[tuple[int, dict[str, Any]]]:
        """Number and facts of a sandbox's commands, the oldest first."""
        found = self._database.execute(
            "SELECT number, facts FROM commands WHERE sandbox_id = ? ORDER BY number", (sandbox_id,)
        )
        return [(row[0], json.loads(row[1])) for row in found]

    def keep_sandbox(self, row: SandboxRow) -> None:
        """Write a sandbox down, anew where it is known. Raises OSError when the disk is full."""
        self._write(
            "INSERT OR REPLACE INTO sandboxes VALUES (?, ?, ?, ?)",
            (row.id, row.owner, row.created_at, _text(row.facts)),
        )

    def keep_command(self, sandbox_id: str, number: int, facts: Mapping[str, Any]) -> None:
        """Write a command down, anew where it is known. Raises OSError when the disk is full."""
        self._write("INSERT OR REPLACE INTO commands VALUES (?, ?, ?)", (sandbox_id, number, _text(facts)))

    def forget_commands(self, sandbox_id: str, numbers: Sequence[int]) -> None:
        """They are not known any more."""
        try:
            self._database.execute("BEGIN")
            rows = [(sandbox_id, number) for number in numbers]
            self._database.executemany("DELETE FROM commands WHERE sandbox_id = ? AND number = ?", rows)
        except sqlite3.Error as error:
            raise _unwritable(error) from error
        finally:
            self._write("COMMIT", ())

    def forget_sandbox(self, sandbox_id: str) -> None:
        """Neither it nor its commands are known any more."""
        self._write("DELETE FROM commands WHERE sandbox_id = ?", (sandbox_id,))
        self._write("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))

    def close(self) -> None:
        """Fold the log into the file and close it."""
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise _unwritable(error) from error


def _unwritable(error: sqlite3.Error) -> OSError:
    return OSError(errno.ENOSPC, f"the journal of sandboxes cannot be written: {error}")


def _text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"), allow_nan=False)
