# SPDX-License-Identifier: MIT
"""The server's side of its keeper: connections to it, and a new keeper where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys

from agentbox.config import Settings, env_name, process_environment
from agentbox.server.problems import Problem
from agentbox.server.sandboxes.connection import KeeperConnection, KeeperLostError
from agentbox.server.sandboxes.keeper_socket import LOG, PRESENCE_PATH, KeeperSocket, is_ours

MODULE = "agentbox.server.sandboxes.keeper"
READY, OTHER = b"ready", b"other"
_START_SECONDS = 60.0
_OTHER_SECONDS = 60.0
_REAP_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_KEPT_CONNECTIONS = 128
# Of no use to a keeper, which answers nobody but its server.
_SECRETS = ("token", "key_file")
_log = logging.getLogger("agentbox.server")


class Keeper:
    """The keeper of one state directory, as its server sees it. Nothing happens until `connect`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._socket: KeeperSocket | None = None
        self._starting = asyncio.Lock()
        self._idle: list[KeeperConnection] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._presence: asyncio.Task[None] | None = None

    async def connect(self) -> KeeperConnection:
        """A connection that carries one request now; a keeper is started where none answers. Raises Problem (503)."""
        while self._idle:
            connection = self._idle.pop()
            if connection.silent:
                connection.begin()
                return connection
            connection.abort()
        connection = await self._open() or await self._open_after_start()
        if self._presence is None or self._presence.done():
            self._presence = asyncio.create_task(self._be_present())
        return connection

    def give_back(self, connection: KeeperConnection) -> None:
        """Keep a connection whose answer was taken whole for the next request; else close it."""
        if connection.done and len(self._idle) < _KEPT_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.abort()

    async def close(self) -> None:
        """Leave the keeper, which goes on."""
        if self._presence is not None:
            self._presence.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._presence
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _open(self) -> KeeperConnection | None:
        if self._socket is None:
            self._socket = await asyncio.to_thread(KeeperSocket, self._settings.resolved_state_dir())
        try:
            transport, connection = await asyncio.get_running_loop().create_unix_connection(
                KeeperConnection, self._socket.path
            )
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        if not is_ours(transport.get_extra_info("socket")):
            transport.abort()
            raise _unavailable()
        return connection

    async def _open_after_start(self) -> KeeperConnection:
        async with self._starting:
            deadline = asyncio.get_running_loop().time() + _OTHER_SECONDS
            while True:
                if connection := await self._open():
                    return connection
                if asyncio.get_running_loop().time() > deadline:
                    raise _unavailable()
                assert self._socket is not None
                if self._socket.is_kept():
                    # Another server starts one at this moment, or the last one is about to end.
                    await asyncio.sleep(_PAUSE_SECONDS)
                else:
                    await asyncio.to_thread(self._start)

    def _start(self) -> None:
        assert self._socket is not None
        if self._process is not None:
            self._process.poll()
        log = self._socket.log()
        said, says = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(says)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(says,),
                start_new_session=True,
            )
            os.close(says)
            says = -1
            answer = _read_line(said, _START_SECONDS)
        except OSError as error:
            _log.error("no keeper can be started: %s", error)
            raise _unavailable() from error
        finally:
            os.close(log)
            os.close(said)
            if says >= 0:
                os.close(says)
        if answer not in (READY, OTHER):
            _log.error("the keeper of sandboxes did not start; its log is %s", self._socket.state / LOG)
            raise _unavailable()

    def _environment(self) -> dict[str, str]:
        settings = self._settings
        environment = process_environment()
        for name in _SECRETS:
            environment.pop(env_name(name), None)
        # What the command line of the server said.
        environment[env_name("state_dir")] = settings.state_directory()
        environment[env_name("sandbox_backend")] = settings.sandbox_backend
        return environment

    async def _be_present(self) -> None:
        """Hold a request open, which says that a server is there, until the keeper ends."""
        with contextlib.suppress(KeeperLostError, Problem, OSError):
            connection = await self._open()
            if connection is None:
                return
            try:
                connection.send(f"GET {PRESENCE_PATH} HTTP/1.1\r\nhost: keeper\r\n\r\n".encode())
                while True:
                    await connection.piece()
            finally:
                connection.abort()
        if self._process is not None:
            # Reaped here, or with the server.
            await asyncio.to_thread(self._reap)

    def _reap(self) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_SECONDS)


def _read_line(fd: int, seconds: float) -> bytes:
    """What comes until the end, waiting at most so long."""
    import select

    data = b""
    while b"\n" not in data:
        ready, _, _ = select.select([fd], [], [], seconds)
        piece = os.read(fd, 4096) if ready else b""
        if not piece:
            break
        data += piece
    return data.strip()


def _unavailable() -> Problem:
    return Problem(
        503,
        "The keeper of sandboxes cannot be reached",
        "keeper_unavailable",
        f"try again; the operator finds the cause in the server's log and in {LOG} of the state directory",
        {"Retry-After": "2"},
    )
