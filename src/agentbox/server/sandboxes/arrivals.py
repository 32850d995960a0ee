# SPDX-License-Identifier: MIT
"""Large files on their way in, written by the keeper itself where that is safe: from the connection to the disk by the
kernel, past the parser, this process and the agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from starlette.requests import Request

from agentbox.sandbox.file_record import MAX_HASHED_BYTES
from agentbox.server.body_rest import TAKE_REST, BodyRest, StalledError, pass_on
from agentbox.server.problems import Problem
from agentbox.server.sandboxes.kept import KeptSandbox
from agentbox.server.supervised import ClientGoneError
from agentbox.workspace.placing import write_all

# A client that sends nothing of a body for so long has stopped.
STALL_SECONDS = 60.0


def is_large(request: Request, max_bytes: int) -> bool:
    """Whether it is one of these: of a known length, and too long to have its hash in the trace."""
    declared = request.headers.get("content-length", "")
    plain = request.headers.get("content-encoding", "identity").strip().lower() in {"", "identity"}
    takes = TAKE_REST in request.scope["state"]
    return takes and plain and declared.isdigit() and MAX_HASHED_BYTES < int(declared[:20]) <= max_bytes


async def receive(request: Request, sandbox: KeptSandbox, path: str, mode: int | None, user: str) -> bool:
    """Take the body to its place. False, and nothing was taken, where it must go the ordinary way. Raises OSError,
    SandboxError, Problem (408), ClientGoneError."""

    async def fill(fd: int, check: Callable[[], None]) -> int:
        rest: BodyRest | None = request.scope["state"][TAKE_REST]()
        if rest is None:
            return await _written(request, fd, check)
        whole = False
        try:
            await asyncio.to_thread(write_all, fd, rest.buffered)
            await pass_on(rest, fd, STALL_SECONDS, to_file=True, check=check)
            whole = True
        except StalledError:
            raise Problem(
                408, f"Nothing of the body arrived for {STALL_SECONDS:g} seconds", "body_timeout", "send it faster"
            ) from None
        except EOFError:
            raise ClientGoneError from None
        finally:
            os.close(rest.source)
            rest.ended(whole)
        return len(rest.buffered) + rest.left

    return await sandbox.receive(path, mode, user, fill)


async def _written(request: Request, fd: int, check: Callable[[], None]) -> int:
    size = 0
    async for piece in request.stream():
        await asyncio.to_thread(write_all, fd, piece)
        size += len(piece)
        check()
    return size
