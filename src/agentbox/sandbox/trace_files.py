# SPDX-License-Identifier: MIT
"""Where traces of sandboxes lie: beside the sandbox and gone with it, or kept in `STATE/sandbox-traces/NAME`.

What is kept is bounded: the oldest go when there are too many, or when they take too much room together.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from agentbox.errors import TraceError
from agentbox.records import dataclass
from agentbox.trace.background import parts_of
from agentbox.trace.ledger import Ledger
from agentbox.trace.reader import read
from agentbox.trace.record import Entry

if TYPE_CHECKING:
    from agentbox.sandbox.state import Place
    from agentbox.trace.keys import KeyStore

KEPT = "sandbox-traces"
FILE = "trace.jsonl"
MAX_KEPT = 500
MAX_KEPT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Where the trace of a sandbox goes, and whether it outlives the sandbox."""

    path: str
    kept: bool


def trace_file(state: Path, place: Place, asked: bool | str | os.PathLike[str] | None) -> TraceFile | None:
    """Where a new trace goes; None where none is wanted. `asked` is what the sandbox was asked for: a path, True for
    one that is kept, False for none, None for one that is kept as long as the workspace. Raises TraceError."""
    if asked is False:
        return None
    if asked is not None and asked is not True:
        return TraceFile(os.path.abspath(os.fspath(asked)), kept=True)
    if not asked and not place.kept:
        return TraceFile(str(place.directory / FILE), kept=False)
    directory = state / KEPT / place.name
    try:
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{directory}: cannot be made: {error.strerror}", hint="free disk space") from error
    return TraceFile(str(directory / FILE), kept=True)


def make_room(state: Path, keys: KeyStore, *, most: int = MAX_KEPT, most_bytes: int = MAX_KEPT_BYTES) -> None:
    """Remove the oldest kept traces where there are too many; none of a sandbox that lives. Does not raise."""
    with contextlib.suppress(OSError, TraceError):
        alive = {name for owner in _names(state / "sandboxes") for name in _names(state / "sandboxes" / owner)}
        found = []
        for name in _names(state / KEPT):
            files = parts_of(str(state / KEPT / name / FILE))
            facts = [os.stat(file) for file in files]
            found.append((max((one.st_mtime for one in facts), default=0.0), sum(one.st_size for one in facts), name))
        found.sort(reverse=True)
        runs: set[str] = set()
        room = most_bytes
        for index, (_, size, name) in enumerate(found):
            room -= size
            if (index >= most or room < 0) and name not in alive:
                files = parts_of(str(state / KEPT / name / FILE))
                runs.update(filter(None, map(_run_of, files)))
                shutil.rmtree(state / KEPT / name, ignore_errors=True)
        if runs:
            Ledger(keys.ledger).forget(runs)


def _run_of(path: str) -> str:
    """The run that the first record of a file names."""
    first = next(iter(read(path)), None)
    return str(first.args.get("run", "")) if isinstance(first, Entry) else ""


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
