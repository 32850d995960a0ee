# SPDX-License-Identifier: MIT
"""A sandbox that outlives whoever asks for it: written down in the journal, its directory where the next keeper
finds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbox.errors import AgentboxError
from agentbox.sandbox.command import Command
from agentbox.sandbox.local import LocalSandbox
from agentbox.sandbox.options import SandboxOptions
from agentbox.sandbox.state import Place, SandboxDirectories, check_name
from agentbox.server.sandboxes.journal import Journal, SandboxRow
from agentbox.server.sandboxes.kept_commands import KeptCommands
from agentbox.server.sandboxes.kept_spool import KeptSpool
from agentbox.server.sandboxes.kinds import GONE, RESOURCES, RUNNING
from agentbox.workspace.volume_grounds import Told
from agentbox.workspace.volumes import Volumes, Workspace


@dataclass(frozen=True, slots=True)
class Grounds:
    """Where a sandbox lies: its own directory, and the groups of its workspace, of named ones and of others."""

    directory: Path
    named: str
    unnamed: str

    def workspace(self, volumes: Volumes, name: str | os.PathLike[str] | None, limit_bytes: int) -> Workspace:
        """Its workspace, made where it is not there. Raises SandboxError, WorkspaceError."""
        if name is None:
            return volumes.named(self.directory.name, limit_bytes, self.unnamed)
        return volumes.named(check_name(os.fspath(name)), limit_bytes, self.named)


class KeptDirectories(SandboxDirectories):
    """One sandbox's directory below STATE/durable, which is not swept when the process that made it died."""

    def __init__(self, state: Path, ground: Grounds) -> None:
        super().__init__(state)
        self._ground = ground

    def make(
        self,
        backend: str,
        workspace: str | os.PathLike[str] | None,
        snapshot_id: str | None = None,
        told: Told | None = None,
    ) -> Place:
        """See SandboxDirectories; what is there is taken as it is."""
        del backend
        assert self.volumes is not None
        directory = self._ground.directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / "spools").mkdir(exist_ok=True, mode=0o700)
        files = self._ground.workspace(self.volumes, workspace, self.limit_bytes)
        if snapshot_id is not None:
            self.volumes.restore(files, snapshot_id, self.limit_bytes, told)
        return Place(directory.name, directory, files.path, True, files)

    def remove(self, place: Place) -> None:
        """Nothing: who deletes the sandbox removes its directory."""


class KeptSandbox(LocalSandbox):
    """One sandbox of one owner. `facts` are what is written down of it; `resting` says that a keeper before this one
    made it, and nobody has used it since."""

    def __init__(self, row: SandboxRow, options: SandboxOptions, ground: Grounds, journal: Journal) -> None:
        super().__init__(options)
        self.id = row.id
        self.owner = row.owner
        self.created_at = row.created_at
        self.facts = row.facts
        self.last_used_at = float(row.facts.get("last_used_at", row.created_at))
        self.directory = ground.directory
        self._ground = ground
        self._journal = journal
        self._waking = asyncio.Lock()
        spools = str(self.directory / "spools")
        self.history = KeptCommands(row.id, spools, options.limits.max_output_bytes, journal)

    # ---- what LocalSandbox leaves to its owner

    def _make_directories(self, state: Path) -> SandboxDirectories:
        return KeptDirectories(state, self._ground)

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

    def note_box(self, **changed: Any) -> None:
        """Write down what is known of the box that was made."""
        held = {name: getattr(self.enforcement, name).value for name in RESOURCES}
        self.note(backend=self.backend, enforcement=held, **changed)

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

    async def renew(self) -> None:
        """The box anew around its workspace, also when it is gone."""
        async with self._waking:
            self.last_used_at = time.time()
            if self.running:
                await self.reset()
            else:
                await self.start()
            self.note_box(status=RUNNING, why_gone="", rebuilt=self.facts["rebuilt"] + 1)

    async def rest(self) -> None:
        """Give up the box, not the sandbox."""
        await self.stop()
        await self.history.settle()
        with contextlib.suppress(OSError):
            self.note()

    def workspace_in(self, volumes: Volumes) -> Workspace:
        """Its workspace. Raises WorkspaceError."""
        return self._ground.workspace(volumes, self.options.workspace, self._limit_bytes)

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
        return self.facts["status"], self.facts["why_gone"]
