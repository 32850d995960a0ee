# SPDX-License-Identifier: MIT
"""The life of a server: keys, runner, listening, a prompt and clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from agentbox.config import Settings
from agentbox.engine.runner import Runner
from agentbox.server import logs
from agentbox.server.access import check_bind, load_keys
from agentbox.server.app import create_app
from agentbox.server.protocol import protocol_class

# Beyond the runs that may be admitted or wait: health checks, listings, idle and slow connections.
SPARE_CONNECTIONS = 512
KEEP_ALIVE_SECONDS = 15
GRACE_SECONDS = 3
WANTED_FILES = 1 << 16
_log = logging.getLogger("agentbox.server")

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
    app: FastAPI, settings: Settings, listener: socket.socket, stop: asyncio.Event, on_ready: Ready | None = None
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
        app.state.stopping.set()

    ending = asyncio.create_task(end_when_told())
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()


def serve(settings: Settings, listener: socket.socket, on_ready: Ready | None = None) -> None:
    """Run the server on a listening socket until SIGTERM or SIGINT.

    `on_ready(host, port)` is called once requests are answered. Raises ConfigError for keys and addresses that are
    not safe, and what Runner.start raises.
    """
    logs.configure(settings.log_level)
    keys, warnings = load_keys(settings)
    check_bind(settings, keys)
    for warning in warnings:
        _log.warning("%s", warning)
    _allow_many_files()

    async def main() -> None:
        stop = asyncio.Event()
        _stop_on_signals(stop)
        runner = await Runner.start(settings)
        try:
            await serve_app(create_app(runner, settings, keys), settings, listener, stop, on_ready)
        finally:
            await runner.close()

    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        loop.run(main())


def _stop_on_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # a platform without it: asyncio's own loop is slower, and does the same
        return None
    return uvloop.new_event_loop


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
