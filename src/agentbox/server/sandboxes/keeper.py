# SPDX-License-Identifier: MIT
"""The keeper: the process that owns the durable sandboxes of a server, and outlives it.

Started by a server as `python -m agentbox.server.sandboxes.keeper FD`; it says on that descriptor that it answers. It
is to sandboxes what a shim is to containers: servers come, go and are killed, and nothing in the boxes notices.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys

import uvicorn

from agentbox.config import Settings, load
from agentbox.errors import AgentboxError
from agentbox.linux.cgroup_leaving import leave_group
from agentbox.server import logs
from agentbox.server.listening import GRACE_SECONDS, BoxServer
from agentbox.server.sandboxes.application import KeeperApplication, create_keeper_app
from agentbox.server.sandboxes.collection import Sandboxes
from agentbox.server.sandboxes.express import ExpressProtocol
from agentbox.server.sandboxes.keeper_socket import KeeperSocket
from agentbox.server.sandboxes.keeper_start import OTHER, READY
from agentbox.server.sandboxes.presence import Presence
from agentbox.server.serve import allow_many_files

_CONNECTIONS = 8192
# Its one client keeps connections for as long as it likes.
_KEEP_ALIVE_SECONDS = 1 << 24
_log = logging.getLogger("agentbox.server")


def main(arguments: list[str]) -> int:
    """Keep sandboxes until told to stop, or until no server comes any more."""
    says = int(arguments[0])
    settings, _ = load()
    logs.configure(settings.log_level)
    logging.getLogger("agentbox.access").setLevel(logging.WARNING)
    place = KeeperSocket(settings.resolved_state_dir())
    if not place.lock():
        _say(says, OTHER)
        return 0
    allow_many_files()
    leave_group()
    try:
        asyncio.run(_keep(settings, place, says))
    except (AgentboxError, OSError):
        _log.exception("the keeper ends")
        return 1
    return 0


async def _keep(settings: Settings, place: KeeperSocket, says: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sandboxes = await Sandboxes.open(settings)
    try:
        presence = Presence(settings.keeper_linger_seconds, sandboxes.hold_boxes)
        app = create_keeper_app(sandboxes, settings, presence)
        listener = place.listen()
        alone = asyncio.create_task(presence.nobody_comes())
        alone.add_done_callback(lambda _: stop.set())
        try:
            _log.info("keeper %d of %s answers", os.getpid(), place.state)
            # What was loaded stays; to look through it again and again takes longer than a command.
            gc.collect()
            gc.freeze()
            await _answer(app, settings, listener, stop, lambda: _say(says, READY))
        finally:
            place.unlink()
            alone.cancel()
    finally:
        await sandboxes.close()
        _log.info("keeper %d ends", os.getpid())


async def _answer(
    app: KeeperApplication, settings: Settings, listener: socket.socket, stop: asyncio.Event, on_ready: object
) -> None:
    limits = {"read_timeout_seconds": settings.request_read_timeout_seconds, "max_connections": _CONNECTIONS}
    config = uvicorn.Config(
        app,
        http=type("KeeperProtocol", (ExpressProtocol,), {**limits, "desk": app.desk}),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = BoxServer(config, on_ready)  # type: ignore[arg-type]

    async def end_when_told() -> None:
        await stop.wait()
        server.should_exit = True
        app.stopping.set()

    ending = asyncio.create_task(end_when_told())
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()


def _say(fd: int, word: bytes) -> None:
    # The server that waits for it may be gone.
    try:
        os.write(fd, word + b"\n")
        os.close(fd)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
