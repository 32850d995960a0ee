# SPDX-License-Identifier: MIT
"""Routes of the lives of sandboxes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agentbox.server.routing import Router
from agentbox.server.sandboxes.bodies import SandboxBody
from agentbox.server.sandboxes.reading import Desk, Query, json_answer, started
from agentbox.server.sandboxes.shapes import sandbox_body


def add(router: Router, desk: Desk) -> None:
    """Add them."""
    ceiling = desk.settings.max_output_bytes

    async def create(request: Request) -> ASGIApp:
        body = await desk.body(request, SandboxBody, may_be_empty=True)
        wanted = body.model_dump(exclude_none=True)
        # Not ended with its client, who will find it in the list.
        sandbox = await started(desk.sandboxes.create(request.state.owner, wanted))
        return json_answer(await sandbox_body(sandbox, ceiling), 201)

    async def list_all(request: Request) -> ASGIApp:
        found = desk.sandboxes.of_owner(request.state.owner)
        return json_answer({"sandboxes": [await sandbox_body(sandbox, ceiling) for sandbox in found]})

    async def get(request: Request) -> ASGIApp:
        return json_answer(await sandbox_body(desk.sandbox(request), ceiling))

    async def delete(request: Request) -> ASGIApp:
        keep = Query(request).choice("keep_workspace", ("true", "false")) == "true"
        await desk.sandboxes.delete(request.state.owner, request.path_params["sandbox_id"], keep_workspace=keep)
        return Response(status_code=204)

    async def reset(request: Request) -> ASGIApp:
        sandbox = desk.sandbox(request)
        await started(sandbox.renew())
        return json_answer(await sandbox_body(sandbox, ceiling))

    router.add("POST", "/v1/sandboxes", create)
    router.add("GET", "/v1/sandboxes", list_all)
    router.add("GET", "/v1/sandboxes/{sandbox_id}", get)
    router.add("DELETE", "/v1/sandboxes/{sandbox_id}", delete)
    router.add("POST", "/v1/sandboxes/{sandbox_id}/reset", reset)
