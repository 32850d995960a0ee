# SPDX-License-Identifier: MIT
"""Pause, snapshots and forks of a sandbox whose box is a server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentbox.errors import SandboxError
from agentbox.sandbox.line import Line
from agentbox.sandbox.options import SandboxOptions
from agentbox.sandbox.remote_events import ask_with_progress
from agentbox.workspace.volume_snapshots import WorkspaceSnapshot

if TYPE_CHECKING:
    from agentbox.sandbox.remote import RemoteSandbox

# A copy may be made, boxes built.
_STATE_SECONDS = 600.0
Told = Callable[[int], None]


class RemoteState:
    """Part of RemoteSandbox. `told` hears what the server says of how far it is, where that takes time."""

    options: SandboxOptions
    _line: Line
    _told: Mapping[str, Any]

    if TYPE_CHECKING:

        @property
        def _path(self) -> str: ...

        def _learn(self, told: Mapping[str, Any]) -> None: ...

    async def pause(self) -> None:
        """Stop everything in the box where it is."""
        self._learn(await self._ask("POST", "/pause", {}))

    async def resume(self) -> None:
        """Let everything in the box go on."""
        self._learn(await self._ask("POST", "/resume", {}))

    @property
    def paused(self) -> bool:
        """Whether it was when the server was asked last."""
        return bool(self._told.get("status") == "paused")

    async def snapshot(
        self, name: str = "", *, keep: bool | None = None, told: Told | None = None
    ) -> WorkspaceSnapshot:
        """Keep what is in the workspace now."""
        wanted = {"name": name or None, "keep": keep}
        value = {key: one for key, one in wanted.items() if one is not None}
        found = await self._ask("POST", "/snapshots", value, told)
        taken = self._read(found)
        if told is not None:
            told(taken.size_bytes)
        return taken

    async def snapshots(self) -> list[WorkspaceSnapshot]:
        """What was kept of it, the newest first."""
        return [self._read(one) for one in (await self._line.ask("GET", f"{self._path}/snapshots"))["snapshots"]]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one."""
        await self._line.ask("DELETE", f"{self._path}/snapshots/{_checked(snapshot_id)}", seconds=_STATE_SECONDS)

    async def restore(self, snapshot_id: str, *, told: Told | None = None) -> None:
        """The workspace as it was then, and the box anew."""
        self._learn(await self._ask("POST", "/restore", {"snapshot_id": snapshot_id}, told))

    async def fork(self, count: int = 1, *, told: Told | None = None) -> list[RemoteSandbox]:
        """Others like it, around copies of its workspace; each goes when it is stopped."""
        from agentbox.sandbox.remote import RemoteSandbox

        found = await self._ask("POST", "/fork", {"count": count}, told)
        made = []
        for one in found["sandboxes"]:
            fork = RemoteSandbox(self.options, self._line.another())
            fork._learn(one)
            made.append(fork)
        return made

    async def _ask(self, method: str, what: str, value: object, told: Told | None = None) -> Any:
        path = f"{self._path}{what}"
        if told is None:
            return await self._line.ask(method, path, value=value, seconds=_STATE_SECONDS)
        return await ask_with_progress(self._line, method, path, value, told)

    def _read(self, found: Mapping[str, Any]) -> WorkspaceSnapshot:
        return WorkspaceSnapshot(
            str(found["snapshot_id"]),
            str(found.get("name") or ""),
            float(found["created_at"]),
            int(found["bytes"]),
            self._path.strip("/"),
            kept=bool(found.get("kept", True)),
        )


def _checked(snapshot_id: str) -> str:
    if not snapshot_id.isascii() or not snapshot_id.isalnum():
        raise SandboxError(f"{snapshot_id!r} is no id of a snapshot", hint="`snapshots()` lists them")
    return snapshot_id
