# SPDX-License-Identifier: MIT
"""What a run changed, for a person: a letter for each path, and a unified diff where both contents are known text."""

from __future__ import annotations

import difflib
import os
import stat
from typing import NamedTuple

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_content import ContentReader
from agentbox.workspace.checkpoint_entries import Change, Entry
from agentbox.workspace.checkpoint_places import Places
from agentbox.workspace.checkpoint_reading import read_file
from agentbox.workspace.checkpoint_scan import Found
from agentbox.workspace.checkpoint_store import CheckpointStore, Taken
from agentbox.workspace.checkpoint_undo import changes_of, state_of
from agentbox.workspace.names import shown

_MAX_TEXT_BYTES = 1 << 20
_MAX_LINES = 50_000
_KINDS = {"d": "directory", "l": "link", "p": "FIFO", "s": "socket", "c": "device", "b": "device", "f": "file"}


class Diff(NamedTuple):
    """One path: A, M or D, the unified diff ('' where there is none), and what else is worth knowing."""

    path: str
    status: str
    text: str
    note: str


def diffs(store: CheckpointStore, taken: Taken, *, force: bool = False, with_text: bool = True) -> list[Diff]:
    """What the run changed, sorted by path. Raises CheckpointError."""
    if store.goes_on(taken):
        raise CheckpointError(f"the run of {taken.id} goes on", hint="ask again when it has ended")
    found = []
    with store.reading() as store_fd, ContentReader(store_fd) as reader:
        undone = {step.path: step.before for step in state_of(store, taken).steps}
        for change in changes_of(store, taken, force=force):
            if not change.is_shown:
                continue
            text, note = "", _note(change)
            if with_text and any(one is not None and one.kind in "fl" for one in (change.before, change.after)):
                text, more = _text(change, undone.get(change.path), reader, store.directory)
                note = "; ".join(filter(None, (note, more)))
            found.append(Diff(change.path, change.status, text, note))
    return found


def _note(change: Change) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        one = before or after
        assert one is not None
        return "" if one.kind == "f" else _KINDS[one.kind]
    notes = []
    if before.kind != after.kind:
        notes.append(f"{_KINDS[before.kind]} -> {_KINDS[after.kind]}")
    elif before.kind != "l" and before.mode != after.mode:
        notes.append(f"mode {before.mode:04o} -> {after.mode:04o}")
    if (before.uid, before.gid) != (after.uid, after.gid):
        notes.append(f"owner {before.uid}:{before.gid} -> {after.uid}:{after.gid}")
    return "; ".join(notes)


def _text(change: Change, kept: Entry | None, reader: ContentReader, directory: str) -> tuple[str, str]:
    """The diff, and why there is none."""
    old = _content(change.path, change.before, reader)
    after = change.after
    if after is not None and after.kind == "f":
        new = _present(change, kept, reader)
        if new is None:
            return "", "changed since, or too large to show" if after.size <= _MAX_TEXT_BYTES else "too large to show"
    else:
        new = _content(change.path, after, reader)
    if old is None or new is None:
        return "", "too large to show"
    if old == new:
        return "", ""
    lines = [_lines(old), _lines(new)]
    if lines[0] is None or lines[1] is None:
        return "", "binary"
    if sum(map(len, lines)) > _MAX_LINES:  # type: ignore[arg-type]
        return "", "too many lines to show"
    name = _relative(change.path, directory)
    return unified(
        "/dev/null" if change.before is None else f"a/{name}",
        "/dev/null" if change.after is None else f"b/{name}",
        lines[0],
        lines[1],
    ), ""


def unified(old_name: str, new_name: str, old: list[str], new: list[str]) -> str:
    """A unified diff that `patch` reads, also where the last line has no end."""
    lines = difflib.unified_diff(old, new, old_name, new_name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _content(path: str, entry: Entry | None, reader: ContentReader) -> bytes | None:
    """What the checkpoint keeps of a path; None for what is too large."""
    if entry is None or entry.kind not in "fl":
        return b""
    if entry.kind == "l":
        return os.fsencode(entry.content) + b"\n"
    return reader.text(path, entry, _MAX_TEXT_BYTES)


def _present(change: Change, kept: Entry | None, reader: ContentReader) -> bytes | None:
    """The content that the run left: what is there still, or what an undoing kept. None where it is neither, or too
    large."""
    after = change.after
    assert after is not None
    if after.size > _MAX_TEXT_BYTES:
        return None
    if kept is not None and kept.file and kept.content == after.content:
        return reader.text(change.path, kept, _MAX_TEXT_BYTES)
    try:
        with Places() as places:
            fd, name = places.of(change.path)
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_size != after.size:
                return None
            reading = read_file(Found(change.path, fd, name, status))
        with open(reading.fd, "rb") as file:
            content = file.read(_MAX_TEXT_BYTES) if reading.content is None else reading.content
        return content if reading.digest == after.content else None
    except (OSError, CheckpointError):
        return None


def _lines(content: bytes) -> list[str] | None:
    """Lines with their ends; None for what is no text."""
    if b"\0" in content:
        return None
    try:
        parts = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    # Only as lines end in files: a form feed within one is no end.
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _relative(path: str, directory: str) -> str:
    inside = path.startswith(directory.rstrip("/") + "/")
    return shown(path[len(directory.rstrip("/")) + 1 :] if inside else path.lstrip("/"), limit=4096)
