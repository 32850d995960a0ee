# SPDX-License-Identifier: MIT
"""What a recorded run began with, as the first record of its trace says it: what a replay compares before it begins."""

from __future__ import annotations

import os
import stat

from agentbox.light import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.engine.agent_run import AgentRequest
    from agentbox.engine.command_view import CommandView

# Of a larger file the size and time are compared.
_MAX_HASHED_BYTES = 8 << 20
_KINDS = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def starting_point(request: AgentRequest, view: CommandView) -> dict[str, Any]:
    """The interpreter, the entry script, where the command runs, and what lies on stdin."""
    found: dict[str, Any] = {
        "directory": request.directory,
        "interpreter": interpreter_of(view),
        "stdin": stdin_of(0),
        "isolation": "none" if request.observe else request.isolation,
    }
    if view.script:
        found["script"] = {"path": view.script, "sha256": hash_of(view.script)}
    return found


def interpreter_of(view: CommandView) -> dict[str, Any]:
    """What runs the command: kind, and what tells one version from another without starting it."""
    found: dict[str, Any] = {"kind": view.kind, "path": view.real}
    try:
        facts = os.stat(view.real)
        found["size"] = facts.st_size
    except OSError:
        pass
    return found


def stdin_of(descriptor: int) -> dict[str, Any]:
    """What the command may read there: of a file the hash of what is left of it."""
    try:
        facts = os.fstat(descriptor)
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "device")
        if kind != "file":
            return {"kind": "terminal" if os.isatty(descriptor) else kind}
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        size = max(0, facts.st_size - offset)
        if size > _MAX_HASHED_BYTES:
            return {"kind": kind, "bytes": size}
        data = os.pread(descriptor, size, offset) if size else b""
        return {"kind": kind, "bytes": size, "sha256": digests.sha256(data).hexdigest()}
    except OSError:
        return {"kind": "closed"}


def hash_of(path: str) -> str | None:
    """The hash of a file, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            digest = digests.sha256(b"")
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError:
        return None
    return digest.hexdigest()
