# SPDX-License-Identifier: MIT
"""JSON of sandboxes and of what their commands wrote."""

from __future__ import annotations

import base64
from typing import Any

from agentbox.server.sandboxes.kept import KeptSandbox
from agentbox.server.sandboxes.kept_commands import KeptCommand
from agentbox.server.sandboxes.kept_spool import KeptSpool
from agentbox.server.schemas import denial_body

_SHOWN_DENIALS = 100


def output_cap(sandbox: KeptSandbox, ceiling: int) -> int:
    """How many bytes of each stream an answer holds."""
    return min(int(sandbox.facts["wanted"].get("max_output_bytes", ceiling)), ceiling)


async def sandbox_body(sandbox: KeptSandbox, ceiling: int) -> dict[str, Any]:
    """JSON of a sandbox. `ceiling` is the operator's of max_output_bytes."""
    status, why_gone = await sandbox.status()
    options, wanted = sandbox.options, sandbox.facts["wanted"]
    return {
        "id": sandbox.id,
        "backend": sandbox.facts.get("backend", options.backend),
        "image": options.image,
        "user": options.user,
        "status": status,
        "why_gone": why_gone,
        "workspace": wanted.get("workspace"),
        "created_at": sandbox.created_at,
        "last_used_at": sandbox.last_used_at,
        "rebuilt": sandbox.facts["rebuilt"],
        "limits": {
            "memory_mb": options.limits.memory_mb,
            "cpus": options.limits.cpus,
            "pids": options.limits.pids,
            "disk_mb": options.limits.disk_mb,
            "max_output_bytes": output_cap(sandbox, ceiling),
        },
        "idle_timeout_seconds": options.idle_timeout,
        "max_lifetime_seconds": options.max_lifetime,
        "enforcement": sandbox.facts["enforcement"],
        "policy_sha256": sandbox.policy_sha256,
        "denials": [denial_body(denial) for denial in sandbox.denials[-_SHOWN_DENIALS:]],
        "warnings": list(sandbox.warnings),
    }


def command_with_output(command: KeptCommand, cap: int) -> dict[str, Any]:
    """JSON of a command with head and tail of what it wrote, at most `cap` bytes of each stream; for who waits with
    KeptCommands.answering."""
    # Of one that still runs more is asked later, perhaps of another keeper.
    told = command.body() if command.running else command.answer()
    return told | _output("stdout", command.stdout, cap) | _output("stderr", command.stderr, cap)


def _output(name: str, spool: KeptSpool | None, cap: int) -> dict[str, Any]:
    data, truncated = (b"", False) if spool is None else _ends(spool, cap)
    try:
        text, encoded = data.decode(), None
    except UnicodeDecodeError:
        text, encoded = data.decode("utf-8", "replace"), base64.b64encode(data).decode()
    return {name: text, f"{name}_b64": encoded, f"{name}_truncated": truncated}


def _ends(spool: KeptSpool, cap: int) -> tuple[bytes, bool]:
    total = spool.total
    if (held := spool.held) is not None and total <= cap:
        return held, False
    if total <= cap:
        data = _range(spool, 0, total)
        return data, len(data) < total
    head = cap // 2
    return _range(spool, 0, head) + _range(spool, total - (cap - head), total), True


def _range(spool: KeptSpool, begin: int, end: int) -> bytes:
    pieces = []
    while begin < end:
        begin, piece = spool.read(begin, end - begin)
        if not piece or begin >= end:
            break
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)
