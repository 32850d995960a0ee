# SPDX-License-Identifier: MIT
"""Answers requests on a listening socket: uvicorn with our protocol, told to stop by an event."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

from agentbox.config import Settings
from agentbox.server.app import Application
from agentbox.server.protocol import protocol_class

# Beyond the runs that may be admitted or wait: health checks, listings, idle and slow connections.
SPARE_CONNECTIONS = 512
KEEP_ALIVE_SECONDS = 15
GRACE_SECONDS = 3

Ready = Callable[[str, int], None]


class BoxServer(uvicorn.Server):
    """uvicorn's server, told to stop by `stop()` instead of by its own signal handlers (which end the process)."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to serve()."""
        yield


async def serve_app(
    app: Application, settings: Settings, listener: socket.socket, stop: asyncio.Event, on_ready: Ready | None = None
) -> None:
    """Answer requests on a listening socket until `stop` is set; runs that are going on then end with 503."""
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        app,
        http=protocol_class(
            settings.request_read_timeout_seconds,
            settings.max_concurrent_runs + settings.max_queued_runs + SPARE_CONNECTIONS,
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = BoxServer(config, lambda: on_ready(host, port) if on_ready else None)

    async def end_when_told() -> None:
        await stop.wait()
        server.should_exit = True
        app.stopping.set()

    ending = asyncio.create_task(end_when_told())
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()
