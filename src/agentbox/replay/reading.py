# SPDX-License-Identifier: MIT
"""From a trace's file to a recording."""

from __future__ import annotations

from agentbox.errors import TraceError
from agentbox.light.jsons import loads
from agentbox.replay.recording import recording_of
from agentbox.trace.lines import lines, opened
from agentbox.trace.reader import Unreadable, read
from agentbox.trace.record import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentbox.replay.recording import Recording


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


def _verified(trace: str | Path) -> Iterator[Entry]:
    """The records of a trace of which it is known that they are what was written."""
    with opened(trace) as file:
        for line, _ in lines(file):
            fields = loads(line)
            yield Entry(
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
    recording = recording_of(_verified(trace))
    if not recording.seed:
        raise TraceError(
            f"{trace} was not recorded for a replay",
            hint="record it again: `agentbox run` always does, POST /v1/run with `record: true`",
        )
    if recording.end is None:
        raise TraceError(f"{trace} has no end: its run was killed, or goes on", hint="record it again")
    return recording
