# SPDX-License-Identifier: MIT
"""The sandboxes of one keeper: whose they are, how many there may be, where they lie."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentbox.config import Settings
from agentbox.errors import AgentboxError, NotFoundError, OverloadedError, QuotaExceededError
from agentbox.sandbox.ceiling import read_ceiling
from agentbox.sandbox.options import SandboxOptions, read_options
from agentbox.sandbox.stateful import Told
from agentbox.server.sandboxes.backends import chosen_backend
from agentbox.server.sandboxes.journal import Journal, SandboxRow
from agentbox.server.sandboxes.kept import KeptSandbox, Whereabouts
from agentbox.server.sandboxes.kinds import RESOURCES, RUNNING
from agentbox.workspace.removal import remove_tree
from agentbox.workspace.vault import owner_directory
from agentbox.workspace.volumes import Volumes, close_volumes, open_volumes

_ID = re.compile(r"sbx-[0-9a-f]{16}\Z")
# A fork has a workspace of its own.
_NOT_FORKED = ("workspace", "snapshot_id")
_UNKNOWN: dict[str, Any] = {
    "status": RUNNING,
    "why_gone": "",
    "rebuilt": 0,
    "enforcement": dict.fromkeys(RESOURCES, "none"),
}
_LOST = "the keeper process ended, and the box with it"
_log = logging.getLogger("agentbox.server")


class Sandboxes:
    """Made by `open`, one for each keeper. Ids that do not exist for an owner raise NotFoundError."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self.settings = settings
        self._journal = journal
        self._ceiling: str | None = None
        self._all: dict[str, KeptSandbox] = {}
        self._beginning: dict[str, str] = {}
        self._state = settings.resolved_state_dir()
        self._root = self._state / "durable"
        self._volumes: Volumes | None = None
        self._opening = asyncio.Lock()

    @classmethod
    async def open(cls, settings: Settings) -> Sandboxes:
        """Know what the journal knows. Raises ConfigError."""
        sandboxes = cls(settings, await asyncio.to_thread(Journal, settings.resolved_state_dir()))
        sandboxes._ceiling = await asyncio.to_thread(read_ceiling, settings.policy_ceiling)
        for row in sandboxes._journal.sandboxes():
            try:
                sandbox = sandboxes._make(row)
                sandbox.found(_LOST)
            except (AgentboxError, OSError, KeyError, TypeError, ValueError):
                _log.exception("sandbox %s of the journal cannot be taken up", row.id)
                continue
            # Of one that was not there yet nobody was told.
            if row.facts.get("deleting") or row.facts.get("beginning"):
                with contextlib.suppress(AgentboxError, OSError):
                    await sandboxes._delete(sandbox, keep_workspace=True)
                continue
            sandboxes._all[row.id] = sandbox
        return sandboxes

    async def close(self) -> None:
        """Put all to rest: boxes end, workspaces and journal stay."""
        for sandbox in self._all.values():
            with contextlib.suppress(AgentboxError, OSError):
                await sandbox.rest()
        self._journal.close()
        if self._volumes is not None:
            await asyncio.to_thread(close_volumes, self._state)

    async def volumes(self) -> Volumes:
        """Where workspaces lie, from the first use on. Raises WorkspaceError."""
        async with self._opening:
            if self._volumes is None:
                size = self.settings.workspace_volumes_mb << 20
                self._volumes = await asyncio.to_thread(
                    open_volumes, self._state, self.settings.workspace_volumes, size
                )
            return self._volumes

    def hold_boxes(self) -> bool:
        """Whether any sandbox has a box."""
        return bool(self._beginning) or any(sandbox.holds_box for sandbox in self._all.values())

    # ---- for owners

    def of_owner(self, owner: str) -> list[KeptSandbox]:
        """The owner's, the oldest first."""
        return [sandbox for sandbox in self._all.values() if sandbox.owner == owner]

    def get(self, owner: str, sandbox_id: str) -> KeptSandbox:
        """One of the owner's."""
        found = self._all.get(sandbox_id)
        if found is None or found.owner != owner:
            raise NotFoundError(f"No sandbox {sandbox_id[:64]!r}", hint="GET /v1/sandboxes lists those of this key")
        return found

    async def create(self, owner: str, wanted: dict[str, Any]) -> KeptSandbox:
        """Make one. `wanted` is the body of the request without what is not set.

        Raises UnknownBackendError, QuotaExceededError, OverloadedError, PolicyError, NotFoundError for a snapshot,
        SandboxError.
        """
        self._judge_room(owner, 1)
        return await self._begin(owner, wanted | {"backend": chosen_backend(self.settings, wanted.get("backend"))})

    async def fork(self, owner: str, sandbox_id: str, count: int, told: Told | None = None) -> list[KeptSandbox]:
        """Make others like it, whose workspaces begin with what its own holds now; `told` as of LocalSandbox. Raises as
        `create`; nothing is left then."""
        source = self.get(owner, sandbox_id)
        await source.wake()
        self._judge_room(owner, count)
        wanted = {name: value for name, value in source.facts["wanted"].items() if name not in _NOT_FORKED}
        copies = await source.copies(count, told=told)
        made = await asyncio.gather(
            *(self._begin(owner, wanted, content) for content in copies), return_exceptions=True
        )
        faults = [one for one in made if isinstance(one, BaseException)]
        if faults:
            for one in made:
                if isinstance(one, KeptSandbox):
                    await self.delete(owner, one.id)
            await source.discard(copies)
            raise faults[0]
        return [one for one in made if isinstance(one, KeptSandbox)]

    async def _begin(self, owner: str, wanted: dict[str, Any], content: Path | None = None) -> KeptSandbox:
        facts = {**_UNKNOWN, "wanted": wanted}
        row = SandboxRow(f"sbx-{secrets.token_hex(8)}", owner, time.time(), facts)
        self._beginning[row.id] = owner
        try:
            sandbox = self._make(row)
            if content is not None:
                sandbox.begin_with(content)
            elif "snapshot_id" in wanted:
                sandbox.begin_with_snapshot(wanted["snapshot_id"])
            volumes = await self.volumes()
            # First: a keeper that is killed meanwhile leaves nothing that the next one does not know.
            sandbox.note(beginning=True)
            try:
                await sandbox.start()
                sandbox.note_box(beginning=False)
            except BaseException:
                await sandbox.stop()
                await asyncio.to_thread(self._remove, sandbox, volumes, with_named=False)
                self._journal.forget_sandbox(sandbox.id)
                raise
            self._all[row.id] = sandbox
        finally:
            del self._beginning[row.id]
        return sandbox

    async def delete(self, owner: str, sandbox_id: str, *, keep_workspace: bool = True) -> None:
        """End it, and remove it with everything; `keep_workspace` keeps one that has a name."""
        sandbox = self.get(owner, sandbox_id)
        del self._all[sandbox_id]
        sandbox.note(deleting=True)
        await self._delete(sandbox, keep_workspace=keep_workspace)

    async def _delete(self, sandbox: KeptSandbox, *, keep_workspace: bool) -> None:
        if sandbox.may_have_box and sandbox.facts.get("backend", "").startswith("docker"):
            # Its container goes the way of others.
            with contextlib.suppress(AgentboxError, OSError):
                await sandbox.renew()
        await sandbox.stop()
        sandbox.forget_traces()
        await sandbox.history.settle()
        await asyncio.to_thread(self._remove, sandbox, await self.volumes(), with_named=not keep_workspace)
        # Last: what is not removed by now is found in the journal.
        self._journal.forget_sandbox(sandbox.id)

    # ---- how it is done

    def _judge_room(self, owner: str, more: int) -> None:
        settings = self.settings
        owners = [sandbox.owner for sandbox in self._all.values()] + list(self._beginning.values())
        if owners.count(owner) + more > settings.max_sandboxes:
            raise QuotaExceededError(
                f"This key has {owners.count(owner)} sandboxes and may have {settings.max_sandboxes}",
                hint="delete one; the operator sets the number with AGENTBOX_MAX_SANDBOXES",
            )
        if len(owners) + more > settings.max_sandboxes_together:
            raise OverloadedError(
                "The server keeps as many sandboxes as it may",
                hint="try again later; the operator sets the number with AGENTBOX_MAX_SANDBOXES_TOGETHER",
                retry_after_seconds=30,
            )

    def _make(self, row: SandboxRow) -> KeptSandbox:
        of_owner = owner_directory(row.owner)
        if not _ID.match(row.id):
            raise ValueError(f"{row.id!r} is no id of a sandbox")
        row = replace(row, facts={**_UNKNOWN, **row.facts})
        where = Whereabouts(self._root / of_owner / row.id, f"of-{of_owner}", f"boxes-{of_owner}")
        return KeptSandbox(row, self._options(row.facts["wanted"]), self._state, where, self._journal)

    def _options(self, wanted: dict[str, Any]) -> SandboxOptions:
        settings = self.settings
        idle = min(wanted.get("idle_timeout_seconds", settings.sandbox_idle_seconds), settings.sandbox_idle_seconds)
        life = min(
            wanted.get("max_lifetime_seconds", settings.sandbox_lifetime_seconds), settings.sandbox_lifetime_seconds
        )
        return read_options(
            image=wanted.get("image"),
            memory=f"{min(wanted.get('memory_mb', 2048), settings.max_memory_mb)}m",
            cpus=min(wanted.get("cpus", 2.0), settings.max_cpus),
            pids_limit=min(wanted.get("pids", 512), settings.max_pids),
            disk=f"{min(wanted.get('disk_mb', 1024), settings.max_disk_mb)}m",
            exec_timeout=wanted.get("exec_timeout_seconds", 60.0),
            backend=wanted["backend"],
            policy=wanted.get("policy"),
            ceiling=self._ceiling,
            workspace=wanted.get("workspace"),
            env=wanted.get("env"),
            user=wanted.get("user", "agent"),
            idle_timeout=idle,
            max_lifetime=life,
            spool_bytes=settings.sandbox_spool_bytes,
        )

    def _remove(self, sandbox: KeptSandbox, volumes: Volumes, *, with_named: bool) -> None:
        name = sandbox.options.workspace
        if name is None or (with_named and not self._used_by_another(sandbox)):
            with contextlib.suppress(AgentboxError, OSError):
                volumes.remove(sandbox.workspace_in(volumes))
        with contextlib.suppress(AgentboxError, OSError):
            fd = os.open(sandbox.directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                remove_tree(fd, sandbox.directory.name)
            finally:
                os.close(fd)

    def _used_by_another(self, sandbox: KeptSandbox) -> bool:
        return any(
            other.options.workspace == sandbox.options.workspace
            for other in self.of_owner(sandbox.owner)
            if other is not sandbox
        )
