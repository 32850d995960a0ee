# SPDX-License-Identifier: MIT
"""The Docker engine's HTTP API over its UNIX socket.

Every call is one connection in a thread of its own: the engine answers each in milliseconds, and a kept connection
would be one more thing that can break. `attach` hands out its socket, which from then on carries the container's
streams.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any
from urllib.parse import quote, urlencode

from agentbox.errors import BackendUnavailableError, EngineError

DEFAULT_HOST = "unix:///var/run/docker.sock"
# 20.10 has it, and everything that is used here.
_API = "/v1.41"
_TIMEOUT_SECONDS = 60.0
_LONG_SECONDS = 900.0
_THREADS = 16
_CHUNK_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("iII")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket of the engine instead of a port."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        self.sock = sock


class Engine:
    """A Docker engine. `host` is `unix:///path`; whoever may use that socket is root on the engine's machine."""

    def __init__(self, host: str = DEFAULT_HOST) -> None:
        self.host = host
        self.path = host.removeprefix("unix://")
        self._threads: ThreadPoolExecutor | None = None

    # Blocking, for whoever has a thread.

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> Any:
        """The decoded JSON of an answer, None where there is none. Raises EngineError, BackendUnavailableError."""
        content = self.read(method, path, query, body, timeout=timeout)
        return json.loads(content) if content.strip() else None

    def read(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> bytes:
        """The bytes of an answer. Raises as `ask`."""
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if payload is not None else {}
        connection = self._connection(timeout)
        try:
            response = self._send(connection, method, path, query, payload, headers)
            return self._read(response)
        finally:
            connection.close()

    def load(self, path: str, query: Mapping[str, str], content: IO[bytes]) -> Iterator[dict[str, Any]]:
        """Send a file as it is read, and yield what the engine says meanwhile. Raises as `ask`."""

        def pieces() -> Iterator[bytes]:
            while piece := content.read(_CHUNK_BYTES):
                yield piece

        connection = self._connection(_LONG_SECONDS)
        try:
            headers = {"Content-Type": "application/x-tar"}
            response = self._send(connection, "POST", path, query, pieces(), headers)
            for line in response:
                if line.strip():
                    told = json.loads(line)
                    if "error" in told:
                        raise EngineError(f"the docker engine could not load it: {told['error']}", status=500)
                    yield told
        except OSError as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def peer(self) -> int | None:
        """The process that listens at the socket, None where this process cannot see it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.settimeout(_TIMEOUT_SECONDS)
                sock.connect(self.path)
                credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:
                return None
        pid: int = _CREDENTIALS.unpack(credentials)[0]
        return pid if pid > 0 and os.path.exists(f"/proc/{pid}/ns/mnt") else None

    def attach(self, container: str) -> socket.socket:
        """A socket with the streams of a container: what is written is its stdin, what is read are frames of its stdout
        and stderr. Call it before the container starts. Raises as `ask`."""
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        connection = self._connection(_TIMEOUT_SECONDS)
        try:
            self._send(connection, "POST", f"/containers/{quote(container)}/attach", query, b"", headers)
            # The response object reads ahead by a file of its own, but nothing comes before the container starts.
            taken = connection.sock.dup()
        finally:
            connection.close()
        taken.setblocking(False)
        return taken

    def _connection(self, timeout: float) -> _Connection:
        if not self.host.startswith("unix://"):
            raise BackendUnavailableError(
                f"AGENTBOX_DOCKER_HOST={self.host} cannot be used: boxes need the engine of this machine",
                hint=f"name its UNIX socket, such as {DEFAULT_HOST}",
            )
        return _Connection(self.path, timeout)

    def _send(
        self,
        connection: _Connection,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        payload: Any,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        target = f"{_API}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(method, target, payload, dict(headers))
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(method, path, response)
        except OSError as error:
            raise self._unreachable(error) from error
        except http.client.HTTPException as error:
            raise self._unreachable(OSError(0, repr(error))) from error
        return response

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(OSError(0, repr(error))) from error

    def _unreachable(self, error: OSError) -> BackendUnavailableError:
        what = error.strerror or str(error)
        hints = {
            PermissionError: "add this user to the group `docker` (it is root then), or run agentbox as root",
            FileNotFoundError: "install and start Docker (Debian: `apt-get install docker.io`), or set "
            "AGENTBOX_DOCKER_HOST",
            ConnectionRefusedError: "start the Docker daemon: `systemctl start docker`, or `dockerd`",
            TimeoutError: "the daemon is overloaded or hangs: look at its log",
        }
        hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "look at the daemon's log")
        return BackendUnavailableError(f"the docker engine at {self.host} does not answer: {what}", hint=hint)

    # The same, awaited.

    async def call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None, **options: Any
    ) -> Any:
        """See `ask`."""
        return await self.in_thread(lambda: self.ask(method, path, query, body, **options))

    async def in_thread(self, work: Any) -> Any:
        """What a function of this engine returns, run in a thread of its own."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "agentbox-docker")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Let the threads end."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


def _refusal(method: str, path: str, response: http.client.HTTPResponse) -> EngineError:
    content = response.read(1 << 16)
    try:
        said = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        said = content.decode(errors="replace").strip() or response.reason
    return EngineError(f"the docker engine says: {said}", hint=_hint(said, path), status=response.status, call=method)


def _hint(said: str, path: str) -> str:
    if "No such image" in said:
        return "`agentbox image build` makes one, `docker pull` gets one"
    if "nknown runtime" in said or "nvalid runtime" in said:
        return "name the runtime in the daemon's daemon.json (`runtimes`) and restart it; `agentbox doctor` shows how"
    if "client version" in said:
        return "install Docker 20.10 or newer"
    return "the daemon's log has more" if "/containers/" in path else ""
