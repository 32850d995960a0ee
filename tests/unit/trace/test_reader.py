# SPDX-License-Identifier: MIT
"""The reader gives every line of old and new traces, and says which ones are none."""

from __future__ import annotations

from pathlib import Path

from agentbox.trace.reader import Unreadable, read
from agentbox.trace.record import Entry
from tests.unit.trace.recording import Recording

FILES = Path(__file__).parents[3] / "spec" / "trace" / "vectors" / "files"


def test_old_and_new_traces_are_read(recording: Recording) -> None:
    new = list(read(recording.trace(3)))
    old = list(read(FILES / "old_python.jsonl"))
    node = list(read(FILES / "old_node.jsonl"))
    assert [item.version for item in new + old + node if isinstance(item, Entry)] == [2] * 6 + [1] * 9 + [1] * 7


def test_lines_that_are_no_records_are_named_and_the_others_still_read(recording: Recording) -> None:
    path = recording.trace(3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\n\xff\n[1]\n" + lines[1] + b'{"v":2}\n' + lines[2][:30])
    items = list(read(path))
    assert [type(item) for item in items] == [Entry, Unreadable, Unreadable, Entry, Unreadable, Unreadable]
    assert [item.line for item in items if isinstance(item, Unreadable)] == [3, 4, 6, 7]
    assert isinstance(items[-1], Unreadable)
    assert items[-1].reason == "the line has no end"
