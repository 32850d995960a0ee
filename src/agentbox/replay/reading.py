# SPDX-License-Identifier: MIT
"""From a trace's file to a recording."""

from __future__ import annotations

from agentbox.errors import TraceError
from agentbox.light.jsons import loads
from agentbox.replay.recording import Recording, Step, add, recording_of
from agentbox.trace.lines import blocks, opened
from agentbox.trace.reader import Unreadable, read
from agentbox.trace.record import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREV, _SHA, _INDEX = b',"prev":"', b'","sha":"', b',"i":'
_HASH_END = len(_PREV) + 64
_MAX_KNOWN = 4096


def recording_in(trace: str | Path) -> Recording:
    """The recording in a trace, which is not judged. Raises TraceError for a file that is none."""

    def entries() -> Iterator[Entry]:
        for one in read(trace):
            if isinstance(one, Unreadable):
                raise TraceError(
                    f"{trace}: line {one.line} is no record: {one.reason}", hint="`agentbox verify` says more"
                )
            yield one

    recording = recording_of(entries())
    if not recording.start:
        raise TraceError(f"{trace} is no trace: it does not begin with the start of a run", hint="name another file")
    return recording


def _verified(trace: str | Path) -> Recording:
    """The recording in a trace of which it is known that it is what was written, each line in its one spelling."""
    recording = Recording()
    # Lines that differ only in their place, as those of a file that is read again: they are parsed once.
    known: dict[bytes, tuple[list[Step], Step]] = {}
    with opened(trace) as file:
        for block, _ in blocks(file):
            for line in block:
                shape, index = _without_place(line)
                again = known.get(shape) if shape else None
                if again is not None:
                    steps, like = again
                    steps.append(Step(index, like.kind, like.op, like.args))
                    continue
                steps_of_it = add(recording, _entry(line))
                if shape and steps_of_it is not None and len(known) < _MAX_KNOWN:
                    known[shape] = steps_of_it, steps_of_it[-1]
    return recording


def _without_place(line: bytes) -> tuple[bytes, int]:
    """A line of a record without result up to its hashes and without its number, and its number; nothing of others."""
    end = line.rfind(_PREV)
    if end < 0 or line[end + _HASH_END : end + _HASH_END + len(_SHA)] != _SHA:
        return b"", 0
    # Within a string the quotation mark would be escaped.
    at = line.rfind(_INDEX, 0, end) + len(_INDEX)
    stop = line.find(b",", at)
    number = line[at:stop]
    return (line[:at] + line[stop:end], int(number)) if number.isdigit() else (b"", 0)


def _entry(line: bytes) -> Entry:
    fields = loads(line)
    return Entry(
        fields["i"],
        fields["ts"],
        fields["kind"],
        fields["op"],
        fields["args"],
        fields.get("result"),
        fields["prev"],
        fields["sha"],
        fields.get("v", 1),
        fields.get("origin", ""),
        fields.get("pid"),
        fields.get("lane"),
        fields,
    )


def replayable(trace: str | Path) -> Recording:
    """The recording in a trace that was verified, of a run that was recorded for a replay and has ended. Raises
    TraceError."""
    recording = _verified(trace)
    if not recording.seed:
        raise TraceError(
            f"{trace} was not recorded for a replay",
            hint="record it again: `agentbox run` always does, POST /v1/run with `record: true`",
        )
    if recording.end is None:
        raise TraceError(f"{trace} has no end: its run was killed, or goes on", hint="record it again")
    return recording
