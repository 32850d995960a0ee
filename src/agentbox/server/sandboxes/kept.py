# SPDX-License-Identifier: MIT
"""A sandbox that outlives whoever asks for it: written down in the journal, its directory where the next keeper
finds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbox.errors import AgentboxError
from agentbox.isolation.durable import DurableBackend, DurableBox, DurableRequest
from agentbox.records import replace
from agentbox.sandbox.arriving import ArrivingFile, parts_inside
from agentbox.sandbox.command import Command
from agentbox.sandbox.file_record import recorded
from agentbox.sandbox.files import absolute
from agentbox.sandbox.local import LocalSandbox
from agentbox.sandbox.options import SandboxOptions
from agentbox.sandbox.state import Place, SandboxDirectories, check_name
from agentbox.sandbox.stateful import Told
from agentbox.server.sandboxes.journal import Journal, SandboxRow
from agentbox.server.sandboxes.kept_commands import KeptCommands
from agentbox.server.sandboxes.kept_spool import KeptSpool
from agentbox.server.sandboxes.kinds import GONE, PAUSED, RESOURCES, RUNNING
from agentbox.trace.background import parts_of
from agentbox.workspace.volumes import Volumes, Workspace


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a sandbox lies: its own directory, and the groups of its workspace, of named ones and of others."""

    directory: Path
    named: str
    unnamed: str

    def workspace(
        self, volumes: Volumes, name: str | os.PathLike[str] | None, limit_bytes: int, content: Path | None = None
    ) -> Workspace:
        """Its workspace, made where it is not there. Raises SandboxError, WorkspaceError."""
        if name is None:
            return volumes.named(self.directory.name, limit_bytes, self.unnamed, content=content)
        return volumes.named(check_name(os.fspath(name)), limit_bytes, self.named, content=content)


class KeptDirectories(SandboxDirectories):
    """One sandbox's directory below STATE/durable, which is not swept when the process that made it died."""

    def __init__(self, state: Path, directory: Path) -> None:
        super().__init__(state)
        self._directory = directory

    def make(self, backend: str, workspace: str | os.PathLike[str] | None) -> Place:
        """See SandboxDirectories; what is there is taken as it is."""
        del backend
        assert self.make_files is not None
        directory = self._directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / "spools").mkdir(exist_ok=True, mode=0o700)
        files = self.make_files(directory.name)
        return Place(directory.name, directory, files.path, workspace is not None, files)

    def remove(self, place: Place) -> None:
        """Nothing: who deletes the sandbox removes its directory."""


class KeptSandbox(LocalSandbox):
    """One sandbox of one owner. `facts` are what is written down of it."""

    def __init__(
        self, row: SandboxRow, options: SandboxOptions, state: Path, where: Whereabouts, journal: Journal
    ) -> None:
        super().__init__(options)
        self.id = row.id
        self.owner = row.owner
        self.created_at = row.created_at
        self.facts = row.facts
        self.last_used_at = float(row.facts.get("last_used_at", row.created_at))
        self.directory = where.directory
        self._where = where
        self._journal = journal
        self._state = state
        self._begins_with: str | None = None
        # Whether a box of an owner before this one may be there.
        self._takes_up = False
        self._waking = asyncio.Lock()
        spools = str(self.directory / "spools")
        self.history = KeptCommands(row.id, spools, options.limits.max_output_bytes, journal)

    # ---- what LocalSandbox leaves to its owner

    def _make_directories(self, state: Path) -> SandboxDirectories:
        return KeptDirectories(state, self.directory)

    def _make_workspace(self, volumes: Volumes, name: str) -> Workspace:
        del name
        content, self._content = self._content, None
        if self._begins_with is not None:
            # Once: the next keeper finds the workspace as it is then.
            wanted, self._begins_with = self._begins_with, None
            content = self._content_of(volumes, wanted)
        return self._where.workspace(volumes, self.options.workspace, self._limit_bytes, content)

    async def _launch(self, backend: DurableBackend, request: DurableRequest) -> DurableBox:
        request = replace(request, keeper=str(self._state))
        adopt = getattr(backend, "adopt_durable", None)
        found = await adopt(request) if adopt is not None and self._takes_up else None
        self._takes_up = False
        if found is None:
            return await super()._launch(backend, request)
        if request.network is None:
            box: DurableBox = found
            return box
        # It had joined a network that ended with its owner.
        await found.destroy()
        return await super()._launch(backend, request)

    def _make_spool(self) -> KeptSpool:
        return self.history.new_spool()

    def _began(self, command: Command) -> None:
        self.history.began(command)

    async def _expire(self, why: str) -> None:
        await super()._expire(why)
        self.note(status=GONE, why_gone=why)

    # ---- life

    def note(self, **changed: Any) -> None:
        """Write down what has changed."""
        self.facts |= changed
        self._journal.keep_sandbox(
            SandboxRow(self.id, self.owner, self.created_at, self.facts | {"last_used_at": self.last_used_at})
        )

    def found(self, why_lost: str) -> None:
        """It was found in the journal: what a keeper before this one ran is lost, for that reason."""
        self._takes_up = True
        self.history.take_up(why_lost)

    @property
    def may_have_box(self) -> bool:
        """Whether a box may be there that this process does not hold."""
        return self._takes_up

    def note_box(self, **changed: Any) -> None:
        """Write down what is known of the box that was made."""
        held = {name: getattr(self.enforcement, name).value for name in RESOURCES}
        self.note(backend=self.backend, enforcement=held, **changed)

    async def start(self) -> None:
        """See LocalSandbox. Each time it is begun it has a trace of its own."""
        number = self.facts["begun"] = self.facts.get("begun", 0) + 1
        self.options = replace(self.options, trace=str(self.directory / f"trace-{number:06}.jsonl"))
        await super().start()

    def traces(self) -> list[str]:
        """Files of its traces, the oldest first."""
        with contextlib.suppress(OSError):
            names = {name.split(".")[0] for name in os.listdir(self.directory) if name.startswith("trace-")}
            return [part for name in sorted(names) for part in parts_of(str(self.directory / f"{name}.jsonl"))]
        return []

    def forget_traces(self) -> None:
        """Its traces are removed with it."""
        if self.recording.log is not None:
            self.recording.log.forget()

    async def wake(self) -> None:
        """Have a box, also where a keeper before this one made it. Raises SandboxGoneError, SandboxError."""
        self.last_used_at = time.time()
        if self.running:
            return
        if self.facts["status"] == GONE:
            raise self._gone(self.facts["why_gone"])
        async with self._waking:
            if not self.running:
                await self.start()
                self.note_box(rebuilt=self.facts["rebuilt"] + 1)

    async def receive(
        self, path: str, mode: int | None, user: str, fill: Callable[[int, Callable[[], None]], Awaitable[int]]
    ) -> bool:
        """Have a file written by this process itself: `fill` writes it to a descriptor, says how many bytes that were,
        and calls what it gets now and then. False, and nothing was done, where the agent is to be asked. Raises
        OSError, SandboxError and what `fill` raises."""
        await self.link()
        place, box, target = self._place, self._box, absolute(path)
        parts = parts_inside(target)
        ours = self.backend == "jail" and not self._holding.present and user in ("", self.options.user)
        if not ours or parts is None or place is None or place.files is None:
            return False
        file = await asyncio.to_thread(ArrivingFile.open, place.workspace, parts, mode)
        if file is None:
            return False

        def check() -> None:
            if self._box is not box:
                raise self._gone("")

        asked = {"path": target, "user": user, "how": "replace", "mode": None if mode is None else f"{mode & 0o777:o}"}
        try:
            with recorded(self.recording.note, "file.write", asked) as record:
                try:
                    record.found(bytes=await fill(file.fd, check))
                    check()
                    await asyncio.to_thread(file.commit)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, target) from error
        finally:
            file.close()
        return True

    def begin_with_snapshot(self, snapshot_id: str) -> None:
        """Have its workspace begin with a snapshot of its owner's, when it starts."""
        self._begins_with = snapshot_id

    async def pause(self) -> None:
        """See LocalSandbox."""
        await super().pause()
        self.note(status=PAUSED)

    async def resume(self) -> None:
        """See LocalSandbox."""
        await super().resume()
        self.note(status=RUNNING)

    async def restore(self, snapshot_id: str, *, told: Told | None = None) -> None:
        """See LocalSandbox."""
        await super().restore(snapshot_id, told=told)
        self.note_box(status=RUNNING, why_gone="", rebuilt=self.facts["rebuilt"] + 1)

    async def renew(self) -> None:
        """The box anew around its workspace, also when it is gone."""
        async with self._waking:
            self.last_used_at = time.time()
            there = self.running or self._takes_up
            if not self.running:
                await self.start()
            if there:
                await self.reset()
            self.note_box(status=RUNNING, why_gone="", rebuilt=self.facts["rebuilt"] + 1)

    async def attend(self) -> None:
        """Have its workspace at hand. One that is gone, and was found in the journal, is built for that."""
        if not self.running and self.facts["status"] == GONE:
            await self.renew()
        elif not self.running:
            await self.wake()
        self.last_used_at = time.time()

    async def rest(self) -> None:
        """Give up the box, not the sandbox."""
        leave = getattr(self._box, "leave", None)
        if leave is not None and self.options.policy is None:
            if self.paused:
                await self.resume()
            self._box = None
            await leave()
        await self.stop()
        await self.history.settle()
        with contextlib.suppress(OSError):
            self.note()

    def workspace_in(self, volumes: Volumes) -> Workspace:
        """Its workspace. Raises WorkspaceError."""
        found = self._where.workspace(volumes, self.options.workspace, self._limit_bytes)
        return replace(found, kept=self.options.workspace is not None)

    @property
    def holds_box(self) -> bool:
        """Whether a box is there now."""
        return self._box is not None

    async def status(self) -> tuple[str, str]:
        """RUNNING, PAUSED or GONE, and why it is gone."""
        box = self._box
        if self.running and box is None:
            return GONE, self._expired
        if box is not None and not await box.alive():
            with contextlib.suppress(AgentboxError):
                return GONE, await box.why_gone()
            return GONE, ""
        if self.paused:
            return PAUSED, ""
        return (GONE, self.facts["why_gone"]) if self.facts["status"] == GONE else (RUNNING, "")
