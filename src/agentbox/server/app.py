# SPDX-License-Identifier: MIT
"""The routes. `create_app` gives a FastAPI application around a runner; nothing lives at module level."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

import agentbox
from agentbox.config import Settings
from agentbox.errors import AgentboxError, NotFoundError
from agentbox.models import RunRequest, RunResult
from agentbox.server import openapi, problems, schemas
from agentbox.server.access import HostRule, KeyRing
from agentbox.server.body import BodyBudget, read_body
from agentbox.server.gate import Gate
from agentbox.server.page import reference_page
from agentbox.server.problems import Problem
from agentbox.server.snapshots import SnapshotCatalogue, snapshot_body
from agentbox.server.stream import EventStream, wants_stream
from agentbox.server.supervised import supervised
from agentbox.server.traces import TraceCatalogue, TraceStream
from agentbox.server.validation import parse_run

if TYPE_CHECKING:
    from agentbox.engine.supervisor import OutputSink

# Above this size JSON is read and written in a thread, so that other requests go on.
INLINE_BYTES = 256 << 10
_log = logging.getLogger("agentbox.server")


class Executes(Protocol):
    """What the application needs of a runner."""

    @property
    def backend_name(self) -> str:
        """The default backend."""

    @property
    def snapshots(self) -> SnapshotCatalogue:
        """Stored snapshots."""

    @property
    def traces(self) -> TraceCatalogue:
        """Traces of runs, and the key that signs them."""

    async def run(self, request: RunRequest, on_output: OutputSink | None = None) -> RunResult:
        """Execute one request; cancelling ends it."""


def create_app(runner: Executes, settings: Settings, keys: KeyRing) -> FastAPI:
    """The application. `app.state.stopping` is an asyncio.Event: setting it ends every run with 503."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.stopping = asyncio.Event()
    document = openapi.document(settings, runner.backend_name, keyed=bool(keys))
    document_bytes = problems.encode(document)
    _add_run(app, runner, settings)
    _add_snapshots(app, runner)
    _add_traces(app, runner)

    @app.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "version": agentbox.__version__, "backend": runner.backend_name})

    @app.get("/openapi.json")
    async def openapi_json() -> Response:
        return Response(document_bytes, media_type="application/json")

    page = reference_page(document)
    for path in ("/docs", "/redoc"):
        app.add_api_route(path, partial(_page, page), methods=["GET"])

    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(AgentboxError, _problem)
    app.add_middleware(Gate, keys=keys, hosts=HostRule.of(settings, keys))
    return app


def _add_run(app: FastAPI, runner: Executes, settings: Settings) -> None:
    budget = BodyBudget(settings.max_body_bytes)

    @app.post("/v1/run")
    async def run(request: Request) -> Response:
        with ExitStack() as held:
            lease = held.enter_context(budget.lease())
            raw = await read_body(request, lease, settings.request_read_timeout_seconds)
            parse = partial(_run_request, raw, request)
            wanted = parse() if len(raw) <= INLINE_BYTES else await asyncio.to_thread(parse)
            del raw, parse
            stopping: asyncio.Event = request.app.state.stopping
            if wants_stream(request.headers.get("accept", "")):
                kept = min(wanted.limits.max_output_bytes or settings.max_output_bytes, settings.max_output_bytes)
                start = partial(runner.run, wanted)
                return EventStream(start, stopping, kept, held.pop_all())
            try:
                result = await supervised(runner.run(wanted), request.receive, stopping)
            except NotFoundError as error:
                raise problems.from_error(error, on_run=True) from error
            if schemas.timed_out(result):
                raise problems.timed_out(result)
            size = len(result.stdout.data) + len(result.stderr.data) + sum(map(len, result.files.values()))
            answer = partial(_json_bytes, result)
            body = answer() if size <= INLINE_BYTES else await asyncio.to_thread(answer)
            return Response(body, media_type="application/json")


def _run_request(raw: bytes, request: Request) -> RunRequest:
    body = parse_run(raw, request.headers.get("content-type", ""))
    return schemas.to_request(body, request.state.owner)


def _json_bytes(result: RunResult) -> bytes:
    return problems.encode(schemas.result_body(result))


def _add_snapshots(app: FastAPI, runner: Executes) -> None:
    @app.get("/v1/snapshots")
    async def list_snapshots(request: Request) -> Response:
        found = await asyncio.to_thread(runner.snapshots.list, request.state.owner)
        return _json({"snapshots": [snapshot_body(info) for info in found]})

    @app.get("/v1/snapshots/{snapshot_id}")
    async def get_snapshot(request: Request, snapshot_id: str) -> Response:
        return _json(snapshot_body(await asyncio.to_thread(runner.snapshots.get, request.state.owner, snapshot_id)))

    @app.delete("/v1/snapshots/{snapshot_id}")
    async def delete_snapshot(request: Request, snapshot_id: str) -> Response:
        await asyncio.to_thread(runner.snapshots.delete, request.state.owner, snapshot_id)
        return Response(status_code=204)


def _add_traces(app: FastAPI, runner: Executes) -> None:
    @app.get("/v1/runs/{run_id}/trace")
    async def get_trace(request: Request, run_id: str) -> Response:
        return TraceStream(await asyncio.to_thread(runner.traces.read, request.state.owner, run_id))

    @app.get("/v1/key")
    async def get_key() -> Response:
        pem = await asyncio.to_thread(runner.traces.public_pem)
        return Response(pem, media_type="application/x-pem-file")


async def _page(page: str) -> Response:
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


def _json(body: object, status: int = 200) -> Response:
    return Response(problems.encode(body), status, media_type="application/json")


async def _problem(request: Request, error: Exception) -> Response:
    problem = problems.from_error(error)
    if problem.status >= 500 and not isinstance(error, Problem):
        _log.error("request failed request_id=%s: %s", request.state.request_id, error)
    body = problems.encode(problem.body(request.state.request_id))
    return Response(body, problem.status, headers=problem.headers, media_type="application/json")


async def _http_exception(request: Request, error: Exception) -> Response:
    """404 and 405 of the router."""
    status = getattr(error, "status_code", 500)
    if status == 405:
        allowed = sorted(
            {
                method
                for route in request.app.routes
                if isinstance(route, Route) and route.path_regex.match(request.url.path)
                for method in route.methods or ()
            }
        )
        problem = Problem(
            405,
            "Method Not Allowed",
            "method_not_allowed",
            f"use {' or '.join(allowed)}",
            {"Allow": ", ".join(allowed)},
        )
    else:
        problem = Problem(404, "Not Found", "not_found", "the paths are listed at /docs")
    return await _problem(request, problem)
