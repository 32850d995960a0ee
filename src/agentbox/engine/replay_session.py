# SPDX-License-Identifier: MIT
"""The run of a replay, from its box to the comparison of how it ended."""

from __future__ import annotations

import os

from agentbox.engine.output import Stream, descriptors
from agentbox.engine.replaying import Player
from agentbox.engine.scratch import state_of
from agentbox.engine.starting_point import LIVE
from agentbox.errors import InvalidRequestError
from agentbox.light import asyncio, contextlib
from agentbox.replay.comparison import Ending, Written, compare_ends
from agentbox.replay.cursor import Cursor
from agentbox.replay.reading import replayable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentbox.engine.agent_box import AgentBox
    from agentbox.engine.agent_replay import ReplayRequest
    from agentbox.engine.agent_run import Building
    from agentbox.engine.keeping import Kept
    from agentbox.engine.scratch import Scratch
    from agentbox.isolation.backend import LiveBox
    from agentbox.replay.recording import Recording, Step
    from agentbox.replay.report import Report

_TERMINAL_SIZE = (24, 80)
# What a terminal takes while nobody reads it.
_MAX_TYPED_BYTES = 4000
_END_OF_INPUT = b"\x04"


class Session:
    """The run of a replay. Of a `recording` without steps they are read when the command was started."""

    def __init__(
        self,
        request: ReplayRequest,
        recording: Recording,
        planned: AgentBox,
        building: Building,
        kept: Kept,
        scratch: Scratch,
        report: Report,
        argv: list[str],
    ) -> None:
        self._request = request
        self._recording = recording
        self._planned = planned
        self._building = building
        self._kept = kept
        self._scratch = scratch
        self._report = report
        self._argv = argv
        self._diverged = asyncio.Event()
        # What the judge reported before the steps were there.
        self._reports: list[dict[str, Any]] = []
        self._player: Player | None = None
        self._streams: list[Stream] = []
        building.on_spawn = self._seen

    async def run(self) -> None:
        """Run the command in its box and fill in the report."""
        box = await self._building.box(None)
        removing: asyncio.Task[None] | None = None
        try:
            code, player = await self._execute(box)
            await box.gone()
            # What is left of it goes while the ends are compared.
            removing = asyncio.create_task(box.destroy())
            self._building.facilities.launcher.let_go()
            await self._compare(code, player.cursor)
        finally:
            await (removing or box.destroy())

    async def _compare(self, code: int | None, cursor: Cursor) -> None:
        """Fill in the report. Raises InvalidRequestError where the command was ended for its time."""
        report = self._report
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
        changed = await asyncio.to_thread(self._changes) if self._scratch.sources else {}
        report.divergences += compare_ends(self._recording, Ending(code, streams, changed), self._recorded_bytes)

    def _seen(self, message: dict[str, Any]) -> None:
        """The exec judge reports."""
        if self._player is None:
            self._reports.append(message)
        else:
            self._player.seen(message)

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

    def _make_player(self) -> Player:
        """What answers the command. Reads the steps where they are not there yet. Raises TraceError."""
        if not self._recording.lanes:
            self._recording = replayable(self._request.trace)
            self._report.total = self._recording.total
        player = Player(Cursor(self._recording), self._kept, self._diverged.set, self._on_spawn)
        for message in self._reports:
            player.seen(message)
        return player

    async def _execute(self, box: LiveBox) -> tuple[int | None, Player]:
        """The exit code, None when its time was over or it diverged; and what answered it."""
        assert box.channel is not None
        watch = asyncio.create_task(box.watch_memory())
        starting = asyncio.create_task(self._start(box))
        try:
            # It is on its way: an interpreter starts longer than its steps are read.
            await asyncio.sleep(0)
            player = self._player = self._make_player()
            player.listen(box.channel)
            exited = await starting
            diverged = asyncio.create_task(self._diverged.wait())
            limit = self._request.limits.timeout_seconds
            await asyncio.wait({exited, diverged}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            diverged.cancel()
            ending = exited.result() if exited.done() else None
            await box.kill_programs()
            await player.finish()
            for stream in self._streams:
                await stream.finish()
        finally:
            watch.cancel()
            starting.cancel()
        if ending is None or ending.status is None:
            return None, player
        code = os.waitstatus_to_exitcode(ending.status)
        return code if code >= 0 else 128 - code, player

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
