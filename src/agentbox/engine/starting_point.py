# SPDX-License-Identifier: MIT
"""What a recorded run began with, as the first record of its trace says it: what a replay compares before it begins."""

from __future__ import annotations

import os
import stat

from agentbox.guest.injection import why_unguarded
from agentbox.light import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentbox.engine.agent_run import AgentRequest
    from agentbox.engine.command_view import CommandView

# Of a larger file the size and time are compared.
_MAX_HASHED_BYTES = 8 << 20
_GUARDED = ("python", "node")
# What a trace says of the clocks: the real ones on the user's word, or because nothing would record them.
LIVE, UNRECORDED = "live", "unrecorded"
# What a trace says of results where it has only their hashes.
HASHED = "hashed"
_KINDS = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def starting_point(request: AgentRequest, view: CommandView) -> dict[str, Any]:
    """The interpreter, the entry script, where the command runs, and what lies on stdin."""
    found: dict[str, Any] = {
        "directory": request.directory,
        "interpreter": interpreter_of(view),
        "stdin": stdin_of(0),
        "isolation": "none" if request.observe else request.isolation,
        "clocks": clocks_of(request, view),
    }
    if view.script:
        found["script"] = {"path": view.script, "sha256": hash_of(view.script)}
    return found


def clocks_of(request: AgentRequest, view: CommandView) -> str:
    """Whether clocks and randomness are `recorded`; or `live`, as the user asked; or `unrecorded`, because the command
    is nothing that has a guard."""
    if why_unrecorded(request.argv, view):
        return UNRECORDED
    return LIVE if request.live_clocks else "recorded"


def why_unrecorded(argv: Sequence[str], view: CommandView) -> str:
    """Why nothing records a command's clocks and randomness; '' when something does."""
    if view.kind not in _GUARDED:
        return f"only what Python and Node do is recorded, and {argv[0]} is neither"
    return why_unguarded(argv)


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
