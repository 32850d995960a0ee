# SPDX-License-Identifier: MIT
"""What can be done with the state of a sandbox that this process owns: pause, snapshot, restore, fork."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbox.config import Settings, load
from agentbox.errors import AgentboxError, NotFoundError, SandboxError, SandboxPausedError
from agentbox.models import DEFAULT_OWNER
from agentbox.records import replace
from agentbox.sandbox.results import NOT_RUNNING
from agentbox.workspace.snapshots import SnapshotStore
from agentbox.workspace.tree import Tree
from agentbox.workspace.volume_snapshots import WorkspaceSnapshot

if TYPE_CHECKING:
    from agentbox.isolation.durable import DurableBox
    from agentbox.sandbox.link import AgentLink
    from agentbox.sandbox.local import LocalSandbox
    from agentbox.sandbox.options import SandboxOptions
    from agentbox.sandbox.state import Place, SandboxDirectories
    from agentbox.workspace.volumes import Volumes

Told = Callable[[int], None]


class Stateful:
    """Part of LocalSandbox. `owner` is whose its snapshots are."""

    owner = DEFAULT_OWNER
    options: SandboxOptions
    paused: bool
    _changing: asyncio.Lock
    _place: Place | None
    _directories: SandboxDirectories | None
    _box: DurableBox | None
    _link: AgentLink | None
    _expired: str
    _content: Path | None
    _given: Settings | None
    _settings: Settings | None

    if TYPE_CHECKING:

        def record(self, op: str, args: Mapping[str, Any]) -> None:
            """See LocalSandbox."""

        async def _raze(self) -> None: ...

        async def _rebuild(self) -> None: ...

        def _gone(self, why: str) -> Exception: ...

    # ---- pause and resume

    async def pause(self) -> None:
        """Stop everything in the box where it is, until `resume`: it uses no processor time. Does nothing when it is
        paused. Raises SandboxError, SandboxGoneError."""
        async with self._changing:
            box = self._living()
            if not self.paused:
                await self._stop_box(box)
                self.paused = True
                self.record("pause", {})

    async def resume(self) -> None:
        """Let everything in the box go on. Raises SandboxError, SandboxGoneError."""
        async with self._changing:
            box = self._living()
            if self.paused:
                self.paused = False
                await _in_words("resumed", box.resume)
                self.record("resume", {})

    async def _stop_box(self, box: DurableBox) -> None:
        await _in_words("paused", box.pause)

    def _living(self) -> DurableBox:
        if self._place is None:
            raise SandboxError(NOT_RUNNING, hint="start it first")
        if self._box is None:
            raise self._gone(self._expired)
        return self._box

    def _judge_paused(self) -> None:
        if self.paused:
            raise SandboxPausedError("the sandbox is paused", hint="resume it first")

    @contextlib.asynccontextmanager
    async def _still(self) -> AsyncIterator[None]:
        """Nothing in the box runs, and what it wrote has left it, while the block does."""
        box = self._box
        if box is None or self.paused or not await box.alive():
            yield
            return
        await self._stop_box(box)
        try:
            yield
        finally:
            await _in_words("resumed", box.resume)

    # ---- snapshots

    async def snapshot(
        self, name: str = "", *, keep: bool | None = None, told: Told | None = None
    ) -> WorkspaceSnapshot:
        """Keep what is in the workspace now, at one moment: what runs is stopped for as long as it takes. It outlives
        the sandbox where it has a name, or the workspace is kept, or `keep` says so. `told` hears from a thread how
        many bytes are copied, where that takes time. Raises SandboxError, WorkspaceError."""
        async with self._changing:
            place, volumes = self._ground()
            key = place.files.key if place.files is not None else f"path:{place.workspace}"
            kept = keep if keep is not None else bool(name) or place.kept
            async with self._still():
                taken = await asyncio.to_thread(
                    lambda: volumes.snapshots.take(
                        place.workspace, key, name=name, kept=kept, owner=self.owner, told=told
                    )
                )
            self.record("snapshot", {"snapshot_id": taken.snapshot_id, "name": name, "size_bytes": taken.size_bytes})
            return taken

    async def snapshots(self) -> list[WorkspaceSnapshot]:
        """Those of its workspace, the newest first."""
        place, volumes = self._ground()
        key = place.files.key if place.files is not None else f"path:{place.workspace}"
        found = await asyncio.to_thread(volumes.snapshots.list, key)
        return [info for info in found if info.owner == self.owner]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one of its owner's. Raises NotFoundError."""
        _, volumes = self._ground()
        await asyncio.to_thread(self._own, volumes, snapshot_id)
        await asyncio.to_thread(volumes.snapshots.delete, snapshot_id)
        self.record("delete_snapshot", {"snapshot_id": snapshot_id})

    async def restore(self, snapshot_id: str, *, told: Told | None = None) -> None:
        """Make the workspace what it was: everything that runs is ended, and the box is anew. Raises NotFoundError,
        WorkspaceError, SandboxError; the workspace is then as before."""
        async with self._changing:
            place, volumes = self._ground()
            files = place.files
            if files is None:
                raise SandboxError(
                    f"{place.workspace} is a directory of the host, which is not replaced",
                    hint="make a sandbox of the snapshot, with snapshot=",
                )
            await asyncio.to_thread(self._own, volumes, snapshot_id)
            await self._raze()
            try:
                await asyncio.to_thread(volumes.restore, files, snapshot_id, self._limit_bytes, told)
                self.record("restore", {"snapshot_id": snapshot_id})
            finally:
                await self._rebuild()

    def _content_of(self, volumes: Volumes, snapshot_id: str) -> Path:
        """A parked copy of a snapshot: of a sandbox's, or of a run's. Blocks. Raises NotFoundError, WorkspaceError."""
        try:
            self._own(volumes, snapshot_id)
        except NotFoundError:
            return self._content_of_run(volumes, snapshot_id)
        return volumes.park_snapshot(snapshot_id, self._limit_bytes)

    def _content_of_run(self, volumes: Volumes, snapshot_id: str) -> Path:
        settings = self._given or load()[0]
        store = SnapshotStore(
            settings.resolved_snapshot_dir(),
            max_bytes=settings.snapshot_max_bytes,
            quota_bytes=settings.snapshot_quota_bytes,
            ttl_seconds=settings.snapshot_ttl_seconds,
        )
        content = volumes.park_empty(self._limit_bytes)
        try:
            fd = os.open(content, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                store.restore(self.owner, snapshot_id, Tree(fd))
            finally:
                os.close(fd)
        except BaseException:
            volumes.discard(content)
            raise
        return content

    def _own(self, volumes: Volumes, snapshot_id: str) -> WorkspaceSnapshot:
        found = volumes.snapshots.get(snapshot_id)
        if found.owner != self.owner:
            raise NotFoundError(f"Unknown snapshot: {snapshot_id}", hint="list those of the sandbox")
        return found

    # ---- forks

    async def copies(self, count: int, *, told: Told | None = None) -> list[Path]:
        """Copies of the workspace as it is at one moment, each to begin another sandbox with (`begin_with`), or to be
        removed with `discard`. Raises SandboxError, WorkspaceError; nothing is left then."""
        if count < 1:
            raise SandboxError(f"{count} forks cannot be made", hint="ask for 1 or more")
        async with self._changing:
            place, volumes = self._ground()
            made: list[Path] = []
            try:
                async with self._still():
                    made.append(await asyncio.to_thread(volumes.park, place.workspace, self._limit_bytes, told))
                for _ in range(count - 1):
                    made.append(await asyncio.to_thread(volumes.park, made[0], self._limit_bytes, told))
            except BaseException:
                await self.discard(made)
                raise
            self.record("fork", {"count": count})
            return made

    async def discard(self, copies: list[Path]) -> None:
        """Remove copies that begin no sandbox."""
        _, volumes = self._ground()
        for copy in copies:
            await asyncio.to_thread(volumes.discard, copy)

    def begin_with(self, content: Path) -> None:
        """Have the workspace begin with a copy, when the sandbox starts."""
        self._content = content

    async def fork(self, count: int = 1, *, told: Told | None = None) -> list[LocalSandbox]:
        """Further sandboxes like this one, which have started, around copies of its workspace as it is at one moment;
        this one goes on. Raises SandboxError, WorkspaceError; nothing is left then."""
        from agentbox.sandbox.local import LocalSandbox

        # Neither a name nor a file can be had twice.
        trace = self.options.trace if isinstance(self.options.trace, bool) else None
        options = replace(self.options, workspace=None, snapshot=None, trace=trace)
        copies = await self.copies(count, told=told)
        made = [LocalSandbox(options) for _ in copies]
        for one, copy in zip(made, copies, strict=True):
            # Whatever this process's environment says by now.
            one.owner, one._given = self.owner, self._settings
            one.begin_with(copy)
        try:
            started = await asyncio.gather(*(one.start() for one in made), return_exceptions=True)
            for failure in started:
                if isinstance(failure, BaseException):
                    raise failure
        except BaseException:
            await asyncio.gather(*(one.stop() for one in made), return_exceptions=True)
            await self.discard(copies)
            raise
        return made

    @property
    def _limit_bytes(self) -> int:
        return self.options.limits.disk_mb << 20

    def _ground(self) -> tuple[Place, Volumes]:
        if self._place is None or self._directories is None or self._directories.volumes is None:
            raise SandboxError(NOT_RUNNING, hint="start it first")
        return self._place, self._directories.volumes


async def _in_words(done: str, action: Callable[[], Any]) -> None:
    try:
        await action()
    except SandboxError:
        raise
    except (AgentboxError, OSError) as error:
        raise SandboxError(
            f"the sandbox cannot be {done}: {error}", hint=getattr(error, "hint", "") or "reset builds it anew"
        ) from error
