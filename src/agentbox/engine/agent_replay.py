# SPDX-License-Identifier: MIT
"""`agentbox replay`: a recorded command once more, in a box without a way out, answered from its trace."""

from __future__ import annotations

import os
import sys

from agentbox.engine.agent_box import AgentBox
from agentbox.engine.agent_run import Building, _links, _private
from agentbox.engine.command_view import look_at
from agentbox.engine.keeping import Kept, find_blobs
from agentbox.engine.lent_files import lend
from agentbox.engine.scratch import Scratch
from agentbox.engine.starting_point import LIVE, hash_of, interpreter_of, stdin_of, why_unrecorded
from agentbox.errors import AgentboxError, InvalidRequestError
from agentbox.guest.injection import GUARD_DIR, known_guard_directory
from agentbox.light import contextlib
from agentbox.policy.compilation import compile_policy
from agentbox.records import dataclass, replace
from agentbox.replay.comparison import Conditions, changed_code, preconditions
from agentbox.replay.reading import ends_of, replayable, surely_reads_only
from agentbox.replay.report import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from agentbox.config import Settings
    from agentbox.engine.command_view import CommandView
    from agentbox.engine.lent_files import Lent
    from agentbox.isolation.facilities import Facilities
    from agentbox.models import Limits
    from agentbox.policy.document import AnyPolicy
    from agentbox.replay.recording import Recording

_REPLAYED = ("python", "node")


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A command to replay. An empty `argv` is the recorded one. `trace` is the recording."""

    trace: str
    argv: tuple[str, ...]
    policy: AnyPolicy
    directory: str
    environment: Mapping[str, str]
    limits: Limits
    # The command's output goes to this process's own, as in a run.
    shows_output: bool = True


async def replay_agent(
    request: ReplayRequest,
    settings: Settings,
    files: Any,
    facilities: Facilities,
    is_trusted: Callable[[], bool] = lambda: True,
) -> Report | None:
    """Replay the command to its end, or to where it diverges; None where the trace is not to be trusted, which is
    asked before anything of the command runs. `files` is the FileView that the policy is compiled with. The caller
    closes `facilities`. Raises TraceError, InvalidRequestError, IsolationError; nothing ran then."""
    ends = ends_of(request.trace)
    replay = None
    if ends is not None and surely_reads_only(request.trace):
        # What stands in the way is said after what is wrong with the trace.
        with contextlib.suppress(AgentboxError):
            replay = _Replay(request, ends, settings, files)
    try:
        if replay is not None and replay.fits:
            # It is built while the trace is verified, and the steps are read while the command starts.
            await replay.begin(facilities)
        if not is_trusted():
            return None
        if replay is None or not replay.fits or ends_of(request.trace) != ends:
            if replay is not None:
                await replay.close()
            replay = _Replay(request, replayable(request.trace), settings, files)
            if replay.fits:
                await replay.begin(facilities)
        if replay.fits:
            await replay.run()
        return replay.report
    finally:
        if replay is not None:
            await replay.close()


class _Replay:
    """One replay: its plan, and then its run. Of a `recording` from the ends of a trace the steps are read when the
    command was started. Raises InvalidRequestError and what else forbids to start, and leaves nothing then."""

    def __init__(self, request: ReplayRequest, recording: Recording, settings: Settings, files: Any) -> None:
        self._request = request
        self._recording = recording
        self._building: Building | None = None
        argv = request.argv or tuple(recording.argv)
        view = look_at(argv, request.directory, request.environment.get("PATH", os.defpath))
        conditions = _conditions(request, argv, view)
        self.report = Report(0, recording.total, preconditions(recording, conditions), trace=request.trace)
        note = changed_code(recording, conditions)
        if note:
            self.report.notes.append(note)
        self.fits = not self.report.divergences
        self._lent: Lent | None = None
        self._scratch: Scratch | None = None
        if not self.fits:
            self.report.started = False
            return
        _must_be_replayable(request, recording, argv, view, self.report)
        try:
            self._plan(settings, files, argv, view)
        except BaseException:
            self._leave()
            raise

    def _plan(self, settings: Settings, files: Any, argv: tuple[str, ...], view: CommandView) -> None:
        request, recording = self._request, self._recording
        confinement = compile_policy(request.policy, request.limits, files)
        guard = known_guard_directory(
            f"{settings.state_directory()}/guards", view.path if view.kind == "python" else None, seen_as=GUARD_DIR
        )
        confinement = replace(confinement, files=(*confinement.files, *_links(request.policy, confinement)))
        lent = self._lent = lend(confinement, trace=request.trace, private=_private(settings, request.directory))
        written = [grant.path for grant in lent.confinement.files if grant.writable and grant.present]
        self._kept = Kept(find_blobs(request.trace))
        changes = recording.changes_files()
        scratch = self._scratch = Scratch(written if changes else (), _directory_of(request.trace))
        unknown = scratch.put_back(recording.written, self._kept.read)
        if unknown:
            self.report.notes.append(
                f"what these files were before the recorded run was not kept: {', '.join(unknown)}"
            )
        if (recording.end or {}).get("files") == "some":
            self.report.notes.append("not all that the recorded run wrote is known: it wrote to too many files")
        scratch.begin()
        shown = lent.confinement
        if not changes:
            shown = replace(shown, files=tuple(replace(grant, writable=False) for grant in shown.files))
        self._planned = AgentBox(
            # Nothing is started but the command.
            replace(shown, programs=((),)),
            request.policy,
            view,
            request.directory,
            guard,
            walled=True,
            sources=scratch.sources,
        )
        self._argv = [view.path, *argv[1:]]

    async def begin(self, facilities: Facilities) -> None:
        """Have the box built, in which nothing of the command runs yet, and do not wait."""
        self._building = Building(self._planned, facilities, witness_all=False)
        await self._building.begin()

    async def run(self) -> None:
        """Run the command in its box and fill in the report."""
        assert self._building is not None
        assert self._scratch is not None
        from agentbox.engine.replay_session import Session

        session = Session(
            self._request,
            self._recording,
            self._planned,
            self._building,
            self._kept,
            self._scratch,
            self.report,
            self._argv,
        )
        await session.run()

    async def close(self) -> None:
        """Leave nothing. May be called twice."""
        building, self._building = self._building, None
        try:
            if building is not None:
                await building.give_up()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._lent is not None:
            self._lent.take_back()
        if self._scratch is not None:
            self._scratch.close()


def _conditions(request: ReplayRequest, argv: tuple[str, ...], view: CommandView) -> Conditions:
    return Conditions(
        policy_sha256=request.policy.policy_sha256,
        argv=argv,
        directory=request.directory,
        python=sys.version.split()[0],
        interpreter=interpreter_of(view),
        stdin=stdin_of(0),
        script={"path": view.script, "sha256": hash_of(view.script)} if view.script else None,
    )


def _must_be_replayable(
    request: ReplayRequest, recording: Recording, argv: tuple[str, ...], view: CommandView, report: Report
) -> None:
    """Raise InvalidRequestError for what fits and still cannot be replayed; note what may make a difference."""
    isolation = recording.start.get("isolation")
    if isolation == "none":
        raise InvalidRequestError(
            f"{request.trace} was recorded with --observe: nothing held it to its policy, as a replay would",
            hint="record it without --observe",
        )
    if isolation != "jail":
        report.notes.append(f"it was recorded with isolation {isolation}, and is replayed in a jail")
    if view.kind not in _REPLAYED:
        raise InvalidRequestError(
            f"{argv[0]} cannot be replayed: only what Python and Node do is answered from a recording",
            hint="replay the program that does the work itself, not a shell around it",
        )
    if why := why_unrecorded(argv, view):
        raise InvalidRequestError(
            f"the command cannot be replayed: {why}", hint="record it without that option of the interpreter"
        )
    if recording.start.get("clocks") == LIVE:
        report.notes.append("it was recorded with --live-clocks: clocks and randomness are others than then")


def _directory_of(trace: str) -> str:
    return os.path.dirname(os.path.realpath(trace))


__all__ = ["ReplayRequest", "replay_agent"]
