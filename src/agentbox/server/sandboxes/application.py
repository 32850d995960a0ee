# SPDX-License-Identifier: MIT
"""What a keeper answers: the routes of sandboxes, for the owner whom its server names."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from agentbox.config import Settings
from agentbox.server.access import HostRule, KeyRing
from agentbox.server.body import BodyBudget
from agentbox.server.gate import Gate
from agentbox.server.problems import Problem
from agentbox.server.routing import Router
from agentbox.server.sandboxes import (
    routes_commands,
    routes_files,
    routes_life,
    routes_output,
    routes_state,
    routes_tools,
)
from agentbox.server.sandboxes.collection import Sandboxes
from agentbox.server.sandboxes.keeper_socket import OWNER_HEADER, PRESENCE_PATH
from agentbox.server.sandboxes.presence import Presence
from agentbox.server.sandboxes.reading import Desk
from agentbox.server.supervised import Occasion

# The server itself, which asks as no caller.
NO_OWNER = "-"


class KeeperGate(Gate):
    """The outermost layer of a keeper: its callers were judged by the server, which says who they are."""

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        owner = headers.get(OWNER_HEADER, b"").decode("ascii", "replace")
        if not owner and scope["path"] != PRESENCE_PATH:
            raise Problem(500, "Internal Server Error", "internal_error", "please report it, with the request id")
        return owner or NO_OWNER


class KeeperApplication:
    """The ASGI application. Setting `stopping` ends every wait with 503."""

    def __init__(self, app: KeeperGate, desk: Desk, stopping: Occasion) -> None:
        self._app = app
        self.desk = desk
        self.stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, send)


def create_keeper_app(sandboxes: Sandboxes, settings: Settings, presence: Presence) -> KeeperApplication:
    """The application of a keeper."""
    stopping = Occasion()
    desk = Desk(sandboxes, settings, BodyBudget(settings.max_body_bytes, shared=True), stopping)
    router = routes_of(desk)
    router.add("GET", PRESENCE_PATH, presence)
    gate = KeeperGate(router, KeyRing({}), HostRule(frozenset(), any_address=False))
    return KeeperApplication(gate, desk, stopping)


def routes_of(desk: Desk) -> Router:
    """Everything that callers of the API may ask of a keeper."""
    router = Router()
    for routes in (routes_life, routes_commands, routes_output, routes_tools, routes_files, routes_state):
        routes.add(router, desk)
    return router
