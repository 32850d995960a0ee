# SPDX-License-Identifier: MIT
"""The routes. `create_app` gives an ASGI application around a runner; nothing lives at module level."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import agentbox
from agentbox.config import Settings
from agentbox.replay.report import Report
from agentbox.server import openapi, problems
from agentbox.server.access import HostRule, KeyRing
from agentbox.server.gate import NOBODY, Gate
from agentbox.server.page import reference_page
from agentbox.server.routing import JsonAnswer, Router
from agentbox.server.running import RunEndpoint, Runs
from agentbox.server.sandboxes.proxy import PREFIX, SandboxProxy
from agentbox.server.snapshots import SnapshotCatalogue, snapshot_body
from agentbox.server.supervised import DISCONNECT, Occasion, supervised
from agentbox.server.traces import TraceCatalogue, TraceStream


class Executes(Runs, Protocol):
    """What the application needs of a runner."""

    @property
    def backend_name(self) -> str:
        """The default backend."""

    @property
    def snapshots(self) -> SnapshotCatalogue:
        """Stored snapshots."""

    async def replay(self, owner: str, run_id: str) -> Report:
        """Run a recorded run again. Raises NotFoundError when the owner has none of that name."""

    @property
    def traces(self) -> TraceCatalogue:
        """Traces of runs, and the key that signs them."""


class Application:
    """The ASGI application. Setting `stopping` ends every run with 503."""

    def __init__(self, app: ASGIApp, stopping: Occasion, sandboxes: SandboxProxy) -> None:
        self._app = app
        self._sandboxes = sandboxes
        self.stopping = stopping

    async def close(self) -> None:
        """Leave the keeper of sandboxes, which goes on."""
        await self._sandboxes.keeper.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, send)


def create_app(runner: Executes, settings: Settings, keys: KeyRing) -> Application:
    """The application of a server with these settings and keys."""
    stopping = Occasion()
    router = Router()
    router.add("POST", "/v1/run", RunEndpoint(runner, settings, stopping, shared=len(keys.owners) > 1))
    _add_health(router, runner)
    _add_snapshots(router, runner)
    _add_traces(router, runner, stopping)
    sandboxes = SandboxProxy(settings, stopping)
    router.add_all_below(PREFIX, sandboxes)
    _add_descriptions(router, openapi.document(settings, runner.backend_name, keyed=bool(keys)))
    return Application(Gate(router, keys, HostRule.of(settings, keys)), stopping, sandboxes)


def _add_health(router: Router, runner: Executes) -> None:
    async def health(request: Request) -> ASGIApp:
        body: dict[str, object] = {"status": "ok", "version": agentbox.__version__, "backend": runner.backend_name}
        # How busy a server is concerns those who may use it.
        if request.state.owner != NOBODY:
            admission = runner.admission
            body["runs"] = {"working": admission.working, "waiting": admission.waiting}
        return _json(body)

    router.add("GET", "/health", health)


def _add_snapshots(router: Router, runner: Executes) -> None:
    async def list_snapshots(request: Request) -> ASGIApp:
        found = await asyncio.to_thread(runner.snapshots.list, request.state.owner)
        return _json({"snapshots": [snapshot_body(info) for info in found]})

    async def get_snapshot(request: Request) -> ASGIApp:
        asked = (request.state.owner, request.path_params["snapshot_id"])
        return _json(snapshot_body(await asyncio.to_thread(runner.snapshots.get, *asked)))

    async def delete_snapshot(request: Request) -> ASGIApp:
        asked = (request.state.owner, request.path_params["snapshot_id"])
        await asyncio.to_thread(runner.snapshots.delete, *asked)
        return Response(status_code=204)

    router.add("GET", "/v1/snapshots", list_snapshots)
    router.add("GET", "/v1/snapshots/{snapshot_id}", get_snapshot)
    router.add("DELETE", "/v1/snapshots/{snapshot_id}", delete_snapshot)


def _add_traces(router: Router, runner: Executes, stopping: Occasion) -> None:
    async def get_trace(request: Request) -> ASGIApp:
        asked = (request.state.owner, request.path_params["run_id"])
        return TraceStream(await asyncio.to_thread(runner.traces.read, *asked))

    async def get_key(request: Request) -> ASGIApp:
        del request
        return Response(await asyncio.to_thread(runner.traces.public_pem), media_type="application/x-pem-file")

    async def replay(request: Request) -> ASGIApp:
        gone = request.scope["state"][DISCONNECT]
        asked = (request.state.owner, request.path_params["run_id"])
        report = await supervised(runner.replay(*asked), gone, stopping)
        return _json(report.as_dict())

    router.add("GET", "/v1/runs/{run_id}/trace", get_trace)
    router.add("POST", "/v1/runs/{run_id}/replay", replay)
    router.add("GET", "/v1/key", get_key)


def _add_descriptions(router: Router, document: openapi.Json) -> None:
    document_bytes, page = problems.encode(document), reference_page(document)
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    async def openapi_json(request: Request) -> ASGIApp:
        del request
        return JsonAnswer(document_bytes)

    async def reference(request: Request) -> ASGIApp:
        del request
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    router.add("GET", "/openapi.json", openapi_json)
    router.add("GET", "/docs", reference)
    router.add("GET", "/redoc", reference)


def _json(body: object) -> ASGIApp:
    return JsonAnswer(problems.encode(body))
