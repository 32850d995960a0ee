# SPDX-License-Identifier: MIT
"""Paths to endpoints: one dictionary look-up for a fixed path, one pattern each for the few that name a thing."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbox.server.problems import Problem

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
_Methods = dict[str, Endpoint]


class Router:
    """An ASGI application of endpoints. An endpoint gets the request and gives the answer, an ASGI application too."""

    def __init__(self) -> None:
        self._fixed: dict[str, _Methods] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], _Methods]] = {}
        self._below: dict[str, Endpoint] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Answer `method` on `path`; `{name}` stands for one part of a path, which the request has as a parameter."""
        if "{" not in path:
            self._fixed.setdefault(path, {})[method] = endpoint
            return
        pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
        self._patterns.setdefault(path, (pattern, {}))[1][method] = endpoint

    def add_all_below(self, path: str, endpoint: Endpoint) -> None:
        """Answer every method on `path` and on everything below it."""
        self._below[path] = endpoint

    @property
    def routes(self) -> set[tuple[str, str]]:
        """Method and path of every route but those of `add_all_below`."""
        known = [*self._fixed.items(), *((path, methods) for path, (_, methods) in self._patterns.items())]
        return {(method, path) for path, methods in known for method in methods}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises Problem: 404, 405."""
        path: str = scope["path"]
        for below, endpoint in self._below.items():
            if path.startswith(below) and (len(path) == len(below) or path[len(below)] == "/"):
                await (await endpoint(Request(scope, receive, send)))(scope, receive, send)
                return
        methods = self._fixed.get(path)
        if methods is None:
            methods = self._matching(scope)
        await self._answer(methods, scope, receive, send)

    async def _answer(self, methods: _Methods, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = methods.get(scope["method"])
        if endpoint is None:
            allowed = sorted(methods)
            raise Problem(
                405,
                "Method Not Allowed",
                "method_not_allowed",
                f"use {' or '.join(allowed)}",
                {"Allow": ", ".join(allowed)},
            )
        answer = await endpoint(Request(scope, receive, send))
        await answer(scope, receive, send)

    def _matching(self, scope: Scope) -> _Methods:
        for pattern, methods in self._patterns.values():
            if found := pattern.fullmatch(scope["path"]):
                scope["path_params"] = found.groupdict()
                return methods
        raise Problem(404, "Not Found", "not_found", "the paths are listed at /docs")


class JsonAnswer:
    """An answer that is JSON bytes already."""

    __slots__ = ("_body", "_status")

    def __init__(self, body: bytes, status: int = 200) -> None:
        self._body = body
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        del scope, receive
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self._body))]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})
