# SPDX-License-Identifier: MIT
"""The traces of a server's runs: `<directory>/<caller>/<run id>.jsonl`, as many and as large together as is allowed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from pathlib import Path
from typing import BinaryIO

from agentbox.errors import NotFoundError, TraceError
from agentbox.workspace.vault import owner_directory

_RUN_ID = re.compile(r"[0-9a-f]{32}\Z")
_SUFFIX = ".jsonl"
# Beside the trace of a run that was recorded for a replay: what it was asked to do, and bytes too large for a trace.
_REQUEST = ".request"
_BLOBS = ".jsonl.blobs"


class TraceStore:
    """Used by one server at a time, from any thread. `keep_runs` and `keep_bytes` hold for each caller."""

    def __init__(self, directory: Path, *, keep_runs: int, keep_bytes: int) -> None:
        self._directory = directory
        self._keep_runs = keep_runs
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        # Ended traces by caller's directory: run id to size, the oldest first.
        self._kept: dict[str, dict[str, int]] = {}

    def open(self) -> list[str]:
        """Make the directory and see what is there. Returns the runs whose traces were removed. Raises TraceError."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for owner in os.scandir(self._directory):
                if owner.is_dir(follow_symlinks=False):
                    self._kept[owner.name] = _found_in(owner.path)
        except OSError as error:
            raise TraceError(
                f"{self._directory}: traces cannot be kept there: {error.strerror}",
                hint="set AGENTBOX_STATE_DIR to a directory that this user may write to",
            ) from error
        return [run_id for name in self._kept for run_id in self._remove_oldest(name)]

    def new(self, owner: str, run_id: str) -> Path:
        """Where the trace of a new run goes. Raises TraceError."""
        directory = f"{self._directory}/{owner_directory(owner)}"
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise TraceError(f"{directory}: cannot be made: {error.strerror}", hint="free disk space") from error
        return Path(f"{directory}/{run_id}{_SUFFIX}")

    def keep(self, owner: str, run_id: str, size: int | None = None) -> list[str]:
        """Offer the trace of a run that has ended, and remove the oldest of its caller where there are too many. `size`
        is its bytes, where that is known and nothing lies beside it.

        Returns the runs whose traces were removed.
        """
        name = owner_directory(owner)
        try:
            if size is None:
                size = self._path(name, run_id).stat().st_size + self._size_beside(name, run_id)
        except OSError:
            return []
        with self._lock:
            self._kept.setdefault(name, {})[run_id] = size
        return self._remove_oldest(name)

    def keep_beside(self, owner: str, run_id: str, request: bytes) -> None:
        """Keep what a run was asked to do. Raises OSError."""
        path = self._directory / owner_directory(owner) / f"{run_id}{_REQUEST}"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(request)

    def beside(self, owner: str, run_id: str) -> bytes | None:
        """What `keep_beside` kept of an ended run, None where nothing was."""
        path = self.path(owner, run_id)
        with contextlib.suppress(FileNotFoundError):
            return path.with_name(f"{run_id}{_REQUEST}").read_bytes()
        return None

    def path(self, owner: str, run_id: str) -> Path:
        """Where an ended run's trace lies. Raises NotFoundError when this caller has none of that name."""
        name = owner_directory(owner)
        with self._lock:
            known = bool(_RUN_ID.match(run_id)) and run_id in self._kept.get(name, {})
        if not known:
            raise self._unknown(run_id)
        return self._path(name, run_id)

    def read(self, owner: str, run_id: str) -> BinaryIO:
        """An ended run's trace, opened. Raises NotFoundError when this caller has none of that name."""
        with contextlib.suppress(FileNotFoundError):
            return self.path(owner, run_id).open("rb")
        raise self._unknown(run_id)

    @staticmethod
    def _unknown(run_id: str) -> NotFoundError:
        return NotFoundError(
            f"No trace of a run {run_id[:64]!r}",
            hint='a trace is kept of runs with a policy or `"trace": true`, until newer ones take its place',
        )

    def _size_beside(self, name: str, run_id: str) -> int:
        path = self._path(name, run_id)
        found = 0
        with contextlib.suppress(OSError):
            found += path.with_name(f"{run_id}{_REQUEST}").stat().st_size
            found += sum(entry.stat().st_size for entry in os.scandir(path.with_name(f"{run_id}{_BLOBS}")))
        return found

    def _path(self, name: str, run_id: str) -> Path:
        return self._directory / name / f"{run_id}{_SUFFIX}"

    def _remove_oldest(self, name: str) -> list[str]:
        gone = []
        with self._lock:
            kept = self._kept[name]
            total = sum(kept.values())
            while len(kept) > self._keep_runs or (total > self._keep_bytes and len(kept) > 1):
                oldest = next(iter(kept))
                total -= kept.pop(oldest)
                gone.append(oldest)
        for run_id in gone:
            path = self._path(name, run_id)
            for one in (path, path.with_name(f"{run_id}{_REQUEST}")):
                with contextlib.suppress(OSError):
                    one.unlink()
            shutil.rmtree(path.with_name(f"{run_id}{_BLOBS}"), ignore_errors=True)
        return gone


def _found_in(directory: str) -> dict[str, int]:
    found = []
    for entry in os.scandir(directory):
        run_id = entry.name.removesuffix(_SUFFIX)
        if entry.name != run_id and _RUN_ID.match(run_id) and entry.is_file(follow_symlinks=False):
            facts = entry.stat(follow_symlinks=False)
            found.append((facts.st_mtime_ns, run_id, facts.st_size))
    return {run_id: size for _, run_id, size in sorted(found)}
