# SPDX-License-Identifier: MIT
"""Routes of the states of sandboxes: paused, kept as snapshots, restored, forked; and their traces."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agentbox.errors import NotFoundError, WorkspaceError
from agentbox.server.problems import Problem
from agentbox.server.routing import Router
from agentbox.server.sandboxes import progress
from agentbox.server.sandboxes.bodies import ForkBody, RestoreBody, SnapshotBody
from agentbox.server.sandboxes.progress import Told
from agentbox.server.sandboxes.reading import Desk, Query, json_answer, started
from agentbox.server.sandboxes.shapes import sandbox_body
from agentbox.server.traces import TraceStream
from agentbox.workspace.volume_snapshots import WorkspaceSnapshot

_FULL = (errno.ENOSPC, errno.EDQUOT)
ONE = "/v1/sandboxes/{sandbox_id}"


def add(router: Router, desk: Desk) -> None:
    """Add them."""
    _add_pausing(router, desk)
    _add_snapshots(router, desk)
    _add_forks(router, desk)
    _add_traces(router, desk)


def _add_pausing(router: Router, desk: Desk) -> None:
    ceiling = desk.settings.max_output_bytes

    async def pause(request: Request) -> ASGIApp:
        sandbox = await desk.awake(request)
        await sandbox.pause()
        return json_answer(await sandbox_body(sandbox, ceiling))

    async def resume(request: Request) -> ASGIApp:
        sandbox = await desk.awake(request)
        await sandbox.resume()
        return json_answer(await sandbox_body(sandbox, ceiling))

    router.add("POST", f"{ONE}/pause", pause)
    router.add("POST", f"{ONE}/resume", resume)


def _add_snapshots(router: Router, desk: Desk) -> None:
    ceiling = desk.settings.max_output_bytes

    async def take(request: Request) -> ASGIApp:
        body = await desk.body(request, SnapshotBody, may_be_empty=True)
        sandbox = await desk.present(request)

        async def work(told: Told) -> dict[str, Any]:
            with disk_errors():
                return snapshot_body(await sandbox.snapshot(body.name or "", keep=body.keep, told=told))

        return await progress.told(request, work, 201, desk.stopping)

    async def list_all(request: Request) -> ASGIApp:
        sandbox = await desk.present(request)
        return json_answer({"snapshots": [snapshot_body(info) for info in await sandbox.snapshots()]})

    async def delete(request: Request) -> ASGIApp:
        sandbox = await desk.present(request)
        await sandbox.delete_snapshot(request.path_params["snapshot_id"])
        return Response(status_code=204)

    async def restore(request: Request) -> ASGIApp:
        body = await desk.body(request, RestoreBody)
        sandbox = await desk.present(request)

        async def work(told: Told) -> dict[str, Any]:
            with disk_errors():
                await started(sandbox.restore(body.snapshot_id, told=told))
            return await sandbox_body(sandbox, ceiling)

        return await progress.told(request, work, 200, desk.stopping)

    router.add("POST", f"{ONE}/snapshots", take)
    router.add("GET", f"{ONE}/snapshots", list_all)
    router.add("DELETE", f"{ONE}/snapshots/{{snapshot_id}}", delete)
    router.add("POST", f"{ONE}/restore", restore)


def _add_forks(router: Router, desk: Desk) -> None:
    ceiling = desk.settings.max_output_bytes

    async def fork(request: Request) -> ASGIApp:
        body = await desk.body(request, ForkBody, may_be_empty=True)
        owner, sandbox_id = request.state.owner, desk.sandbox(request).id

        async def work(told: Told) -> dict[str, Any]:
            with disk_errors():
                made = await started(desk.sandboxes.fork(owner, sandbox_id, body.count or 1, told))
            return {"sandboxes": [await sandbox_body(sandbox, ceiling) for sandbox in made]}

        return await progress.told(request, work, 201, desk.stopping)

    router.add("POST", f"{ONE}/fork", fork)


def _add_traces(router: Router, desk: Desk) -> None:
    async def trace(request: Request) -> ASGIApp:
        sandbox = desk.sandbox(request)
        part = Query(request).whole("part", 0, 0, 1 << 20)
        if sandbox.recording.log is not None:
            await asyncio.wrap_future(sandbox.recording.log.settled())
        files = await asyncio.to_thread(sandbox.traces)
        if part > len(files) or not files:
            raise NotFoundError(f"No part {part} of the trace", hint=f"there are {len(files)}")
        answer = TraceStream(await asyncio.to_thread(open, files[part - 1], "rb"))
        answer.headers["X-Agentbox-Parts"] = str(len(files))
        return answer

    router.add("GET", f"{ONE}/trace", trace)


def snapshot_body(info: WorkspaceSnapshot) -> dict[str, Any]:
    """JSON of a snapshot."""
    return {
        "snapshot_id": info.snapshot_id,
        "name": info.name or None,
        "bytes": info.size_bytes,
        "created_at": info.created_at,
        "kept": info.kept,
    }


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """A disk that is full becomes its answer."""
    try:
        yield
    except WorkspaceError as error:
        number = error.data.get("errno")
        if number not in _FULL:
            raise
        assert isinstance(number, int)
        name = errno.errorcode[number]
        raise Problem(
            507, "The disk for workspaces is full", "file_error", "remove files or snapshots", extra={"errno": name}
        ) from error
