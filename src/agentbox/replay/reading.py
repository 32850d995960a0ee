# SPDX-License-Identifier: MIT
"""From a trace's file to a recording."""

from __future__ import annotations

from agentbox.errors import TraceError
from agentbox.light.jsons import loads
from agentbox.replay.recording import Recording, Step, add, recording_of
from agentbox.trace.canonical import NotCanonicalError
from agentbox.trace.lines import LineTooLongError, blocks, opened, texts
from agentbox.trace.reader import Unreadable, read
from agentbox.trace.record import RUN_END, RUN_START, Entry, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PREV, _SHA = b',"prev":"', b'","sha":"'
_HASH_DIGITS = 64
# Where the number was; in no line of JSON.
_GAP = b"\n"
_MAX_KNOWN = 4096
# More than the first record takes, and more than the last ones do of a run that can be read from its ends.
_ENDS_BYTES = 64 << 10
_LAST_LINES = 4
_FILE_OP, _SPAWN_OP = b'"op":"fs.', b'"op":"proc.spawn"'
_READING_OPS = (b'"op":"fs.open_read"', b'"op":"fs.read_text"')


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
    known: dict[bytes, tuple[Callable[[Step], None], Step]] = {}
    index = -1
    with opened(trace) as file:
        for block, _ in blocks(file):
            for line in block:
                # Every line of a whole trace is a record, and they are numbered.
                index += 1
                shape = _without_place(line, index)
                again = known.get(shape)
                if again is not None:
                    add_step, like = again
                    add_step(Step(index, like.kind, like.op, like.args))
                    continue
                steps_of_it = add(recording, _entry(line))
                if shape and steps_of_it is not None and len(known) < _MAX_KNOWN:
                    known[shape] = steps_of_it.append, steps_of_it[-1]
    return recording


def _without_place(line: bytes, index: int) -> bytes:
    """A line of a record without result up to its hashes and without its number; nothing of others."""
    # Within a string the quotation mark would be escaped.
    before, mark, after = line.rpartition(_PREV)
    if mark and after.startswith(_SHA, _HASH_DIGITS):
        front, mark, behind = before.rpartition(b',"i":%d,' % index)
        if mark:
            return front + _GAP + behind
    return b""


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
    return _fit_for_replay(_verified(trace), trace)


def ends_of(trace: str | Path) -> Recording | None:
    """The recording in a trace without its steps, from its first and last lines alone, before it is verified. None
    where these do not tell all that a replay begins with; `replayable` says why, or knows more."""
    found = Recording()
    try:
        with opened(trace) as file:
            first = file.read(_ENDS_BYTES).partition(b"\n")[0]
            file.seek(max(0, file.seek(0, 2) - _ENDS_BYTES))
            last = file.read(_ENDS_BYTES).split(b"\n")[-_LAST_LINES:]
        for line, op in ((first, RUN_START), *((line, RUN_END) for line in last if b'"op":"run.end"' in line)):
            entry = parse(line)
            if (entry.kind, entry.op) != ("meta", op):
                return None
            add(found, entry)
        return _fit_for_replay(found, trace) if found.argv else None
    except (NotCanonicalError, TraceError):
        return None


def surely_reads_only(trace: str | Path) -> bool:
    """Whether nothing in a trace changed a file, told without parsing it: false where it may have, or cannot be
    read."""
    try:
        with opened(trace) as file:
            return all(_reads_only(text) for text, _ in texts(file))
    except (LineTooLongError, TraceError):
        return False


def _reads_only(text: bytes) -> bool:
    # Within a string the quotation marks would be escaped.
    return _SPAWN_OP not in text and text.count(_FILE_OP) == sum(map(text.count, _READING_OPS))


def _fit_for_replay(recording: Recording, trace: str | Path) -> Recording:
    if recording.start.get("bodies") == "hashed":
        raise TraceError(
            f"{trace} cannot be replayed: it was recorded with --hash-bodies, and has hashes in place of results",
            hint="record it again without --hash-bodies",
        )
    if not recording.seed:
        raise TraceError(
            f"{trace} was not recorded for a replay",
            hint="record it again: `agentbox run` always does, POST /v1/run with `record: true`",
        )
    if recording.end is None:
        raise TraceError(f"{trace} has no end: its run was killed, or goes on", hint="record it again")
    return recording
