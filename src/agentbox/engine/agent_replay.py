# SPDX-License-Identifier: MIT
"""`agentbox replay`: a recorded command once more, in a box without a way out, answered from its trace."""

from __future__ import annotations

import os
import sys

from agentbox.engine.agent_box import AgentBox
from agentbox.engine.agent_run import _links, _private
from agentbox.engine.command_view import look_at
from agentbox.engine.keeping import Kept, find_blobs
from agentbox.engine.lent_files import lend
from agentbox.engine.output import Stream, descriptors
from agentbox.engine.replaying import Player
from agentbox.engine.scratch import Scratch, state_of
from agentbox.engine.starting_point import LIVE, hash_of, interpreter_of, stdin_of, why_unrecorded
from agentbox.errors import InvalidRequestError
from agentbox.guest.injection import GUARD_DIR, known_guard_directory
from agentbox.light import asyncio, contextlib
from agentbox.policy.compilation import compile_policy
from agentbox.records import dataclass, replace
from agentbox.replay.comparison import Conditions, Ending, Written, changed_code, compare_ends, preconditions
from agentbox.replay.cursor import Cursor
from agentbox.replay.reading import replayable
from agentbox.replay.report import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentbox.config import Settings
    from agentbox.isolation.backend import LiveBox
    from agentbox.isolation.facilities import Facilities
    from agentbox.models import Limits
    from agentbox.policy.document import AnyPolicy
    from agentbox.replay.recording import Recording, Step

_REPLAYED = ("python", "node")
_TERMINAL_SIZE = (24, 80)
# What a terminal takes while nobody reads it.
_MAX_TYPED_BYTES = 4000
_END_OF_INPUT = b"\x04"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A command to replay. An empty `argv` is the recorded one. `trace` is the recording, which was verified."""

    trace: str
    argv: tuple[str, ...]
    policy: AnyPolicy
    directory: str
    environment: Mapping[str, str]
    limits: Limits
    # The command's output goes to this process's own, as in a run.
    shows_output: bool = True


async def replay_agent(request: ReplayRequest, settings: Settings, files: Any, facilities: Facilities) -> Report:
    """Replay the command to its end, or to where it diverges. `files` is the FileView that the policy is compiled with.
    The caller closes `facilities`. Raises TraceError, InvalidRequestError, IsolationError; nothing ran then."""
    recording = replayable(request.trace)
    argv = request.argv or tuple(recording.argv)
    directory = request.directory
    search_path = request.environment.get("PATH", os.defpath)
    view = look_at(argv, directory, search_path)
    conditions = Conditions(
        policy_sha256=request.policy.policy_sha256,
        argv=argv,
        directory=directory,
        python=sys.version.split()[0],
        interpreter=interpreter_of(view),
        stdin=stdin_of(0),
        script={"path": view.script, "sha256": hash_of(view.script)} if view.script else None,
    )
    report = Report(0, recording.total, preconditions(recording, conditions), trace=request.trace)
    note = changed_code(recording, conditions)
    if note:
        report.notes.append(note)
    if report.divergences:
        report.started = False
        return report
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
    confinement = compile_policy(request.policy, request.limits, files)
    guard = known_guard_directory(
        f"{settings.state_directory()}/guards", view.path if view.kind == "python" else None, seen_as=GUARD_DIR
    )
    confinement = replace(confinement, files=(*confinement.files, *_links(request.policy, confinement)))
    lent = lend(confinement, trace=request.trace, private=_private(settings, directory))
    scratch = None
    try:
        written = [grant.path for grant in lent.confinement.files if grant.writable and grant.present]
        kept = Kept(find_blobs(request.trace))
        scratch = Scratch(written if recording.changes_files() else (), _directory_of(request.trace))
        unknown = scratch.put_back(recording.written, kept.read)
        if unknown:
            report.notes.append(f"what these files were before the recorded run was not kept: {', '.join(unknown)}")
        if (recording.end or {}).get("files") == "some":
            report.notes.append("not all that the recorded run wrote is known: it wrote to too many files")
        scratch.begin()
        shown = lent.confinement
        if not recording.changes_files():
            shown = replace(shown, files=tuple(replace(grant, writable=False) for grant in shown.files))
        planned = AgentBox(
            # Nothing is started but the command.
            replace(shown, programs=((),)),
            request.policy,
            view,
            directory,
            guard,
            walled=True,
            sources=scratch.sources,
        )
        session = _Session(request, recording, planned, facilities, kept, scratch, report, [view.path, *argv[1:]])
        await session.run()
    finally:
        lent.take_back()
        if scratch is not None:
            scratch.close()
    return report


def _directory_of(trace: str) -> str:
    return os.path.dirname(os.path.realpath(trace))


class _Session:
    """The run of a replay."""

    def __init__(
        self,
        request: ReplayRequest,
        recording: Recording,
        planned: AgentBox,
        facilities: Facilities,
        kept: Kept,
        scratch: Scratch,
        report: Report,
        argv: list[str],
    ) -> None:
        self._request = request
        self._recording = recording
        self._planned = planned
        self._facilities = facilities
        self._kept = kept
        self._scratch = scratch
        self._report = report
        self._argv = argv
        self._diverged = asyncio.Event()
        self._cursor = Cursor(recording)
        self._player = Player(self._cursor, kept, self._diverged.set, self._on_spawn)
        self._streams: list[Stream] = []

    async def run(self) -> None:
        """Run the command in its box and fill in the report."""
        box = await self._planned.build(self._facilities, self._player.seen, witness_all=False)
        try:
            code = await self._execute(box)
        finally:
            await box.destroy()
        report, cursor = self._report, self._cursor
        report.matched = cursor.matched
        if cursor.divergence is not None:
            report.divergences.append(cursor.divergence)
            return
        if code is None:
            raise InvalidRequestError(
                f"the replay was ended after {self._request.limits.timeout_seconds:g} s",
                hint="raise the policy's timeout_seconds if the recorded run took as long",
            )
        report.exit_code = code
        streams = {
            stream.name: Written(stream.written.size, stream.written.sha256, stream.written.held())
            for stream in self._streams
        }
        report.divergences += cursor.unfinished()
        ending = Ending(code, streams, await asyncio.to_thread(self._changes))
        report.divergences += compare_ends(self._recording, ending, self._recorded_bytes)

    def _on_spawn(self, step: Step) -> None:
        """A program's result is given: what it wrote is there before."""
        files = self._recording.spawned.get(step.index, {}).get("files")
        if isinstance(files, dict):
            self._scratch.apply(files, self._kept.read)

    def _changes(self) -> dict[str, Any]:
        """What the replay changed. What the recorded run left as it was is still there, to compare with."""
        return {
            path: state
            for path, state in self._scratch.changes().items()
            if path in self._recording.written or state != state_of(path)
        }

    def _recorded_bytes(self, facts: Mapping[str, Any]) -> bytes | None:
        name = facts.get("kept")
        return self._kept.read(name) if isinstance(name, str) else None

    async def _execute(self, box: LiveBox) -> int | None:
        """The exit code, None when its time was over or it diverged."""
        assert box.channel is not None
        self._player.listen(box.channel)
        watch = asyncio.create_task(box.watch_memory())
        try:
            exited = await self._start(box)
            diverged = asyncio.create_task(self._diverged.wait())
            limit = self._request.limits.timeout_seconds
            await asyncio.wait({exited, diverged}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            diverged.cancel()
            ending = exited.result() if exited.done() else None
            await box.kill_programs()
            await self._player.finish()
            for stream in self._streams:
                await stream.finish()
        finally:
            watch.cancel()
        if ending is None or ending.status is None:
            return None
        code = os.waitstatus_to_exitcode(ending.status)
        return code if code >= 0 else 128 - code

    async def _start(self, box: LiveBox) -> asyncio.Future[Any]:
        environment = self._planned.environment(
            self._request.environment, observe=False, seed=self._recording.seed, mode="replay"
        )
        if self._recording.start.get("clocks") == LIVE:
            environment["AGENTBOX_CLOCKS"] = LIVE
        end = self._recording.end or {}
        directory = self._request.directory
        if "terminal" in end:
            return await self._start_on_terminal(box, environment, directory)
        targets = (1, 2) if self._request.shows_output else (-1, -1)
        if "output" in end:
            self._streams = [Stream((1, 2), targets[0])]
        else:
            self._streams = [Stream((1,), targets[0]), Stream((2,), targets[1])]
        for stream in self._streams:
            stream.open()
        try:
            _, exited = await box.start_with_signals(self._argv, environment, directory, descriptors(self._streams))
        finally:
            for stream in self._streams:
                stream.given()
        return exited

    async def _start_on_terminal(
        self, box: LiveBox, environment: dict[str, str], directory: str
    ) -> asyncio.Future[Any]:
        _, exited, master = await box.start_on_terminal(self._argv, environment, directory, _TERMINAL_SIZE)
        typed = (self._recording.end or {}).get("terminal", {}).get("typed")
        data = self._recorded_bytes(typed) if isinstance(typed, dict) else None
        if typed:
            self._report.notes.append("keys were typed, so what the terminal showed is not compared")
        # Nobody types: who reads finds what was typed, then the end.
        with contextlib.suppress(OSError):
            os.write(master, (data or b"")[:_MAX_TYPED_BYTES] + _END_OF_INPUT)
        stream = Stream((0, 1, 2), 1 if self._request.shows_output else -1)
        stream.adopt(master)
        self._streams = [stream]
        return exited


__all__ = ["ReplayRequest", "replay_agent"]
