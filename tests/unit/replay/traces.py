# SPDX-License-Identifier: MIT
"""Recordings as tests write them down: a line for each record."""

from __future__ import annotations

from typing import Any

from agentbox.replay.recording import Recording, recording_of
from agentbox.trace.record import Entry

START = {"argv": ["python3", "a.py"], "policy_sha256": "p", "random_seed": "0" * 64, "directory": "/project"}
END = {"returncode": 0, "stdout": {"bytes": 0, "sha256": "empty"}}


def entry(
    index: int,
    kind: str,
    op: str,
    args: dict[str, Any],
    *,
    result: Any = None,
    lane: str | None = "main",
    origin: str = "guest",
) -> Entry:
    """One record."""
    return Entry(index, float(index), kind, op, args, result, "", "", 2, origin, 7, lane)


def recorded(
    *records: tuple[Any, ...], start: dict[str, Any] | None = None, end: dict[str, Any] | None = None
) -> Recording:
    """A recording of (kind, op, args[, result[, lane[, origin]]]), numbered from 1."""
    entries = [entry(0, "meta", "run.start", START if start is None else start, origin="supervisor")]
    for number, (kind, op, args, *rest) in enumerate(records, 1):
        result, lane, origin = (*rest, *(None, "main", "guest")[len(rest) :])
        entries.append(entry(number, kind, op, args, result=result, lane=lane, origin=origin))
    entries.append(entry(len(entries), "meta", "run.end", END if end is None else end, origin="supervisor"))
    return recording_of(entries)


def read_text(path: str, text: str = "text", lane: str = "main") -> tuple[Any, ...]:
    """An effect."""
    return ("effect", "fs.read_text", {"path": path}, text, lane)


def opened(path: str, sha256: str = "a", lane: str = "main") -> tuple[Any, ...]:
    """An observation."""
    return ("observe", "fs.open_read", {"path": path, "sha256": sha256}, None, lane)


def clocks(*calls: Any, lane: str = "main") -> tuple[Any, ...]:
    """Values of clocks."""
    return ("observe", "clock.values", {"calls": list(calls)}, None, lane)
