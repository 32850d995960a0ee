# SPDX-License-Identifier: MIT
"""The life of a server: keys, runner, listening, a prompt and clean end."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import threading

from agentbox.config import Settings
from agentbox.engine.runner import Runner
from agentbox.server import logs
from agentbox.server.access import check_bind, load_keys
from agentbox.server.app import create_app
from agentbox.server.listening import Ready, serve_app

WANTED_FILES = 1 << 16
_log = logging.getLogger("agentbox.server")


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
    allow_many_files()

    async def main() -> None:
        stop = asyncio.Event()
        _stop_on_signals(stop)
        runner = await Runner.start(settings)
        try:
            app = create_app(runner, settings, keys)
            try:
                await serve_app(app, settings, listener, stop, on_ready)
            finally:
                await app.close()
        finally:
            await runner.close()

    asyncio.run(main())


def _stop_on_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)


def allow_many_files() -> None:
    """Raise the soft limit of open files as far as WANTED_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
