# SPDX-License-Identifier: MIT
"""From a trace's file to a recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentbox.errors import TraceError
from agentbox.replay.recording import recording_of
from agentbox.trace.reader import Unreadable, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbox.replay.recording import Recording
    from agentbox.trace.record import Entry


def recording_in(trace: str | Path) -> Recording:
    """The recording in a trace, which is not judged. Raises TraceError for a file that is none."""

    def entries() -> Iterator[Entry]:
        for one in read(Path(trace)):
            if isinstance(one, Unreadable):
                raise TraceError(
                    f"{trace}: line {one.line} is no record: {one.reason}", hint="`agentbox verify` says more"
                )
            yield one

    recording = recording_of(entries())
    if not recording.start:
        raise TraceError(f"{trace} is no trace: it does not begin with the start of a run", hint="name another file")
    return recording


def replayable(trace: str | Path) -> Recording:
    """The same, of a run that was recorded for a replay and has ended. Raises TraceError."""
    recording = recording_in(trace)
    if not recording.seed:
        raise TraceError(
            f"{trace} was not recorded for a replay",
            hint="record it again: `agentbox run` always does, POST /v1/run with `record: true`",
        )
    if recording.end is None:
        raise TraceError(f"{trace} has no end: its run was killed, or goes on", hint="record it again")
    return recording
