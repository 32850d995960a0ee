# SPDX-License-Identifier: MIT
"""One HTTP/1.1 connection for asyncio: a request out, while the answer may come before its body is through, and the
answer's body piece by piece. It costs a tenth of a general client, which counts where each command is a request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import IO, Any
from urllib.parse import urlsplit

from agentbox.records import dataclass
from agentbox.sdk.errors import LostConnectionError, NoServerError

CONNECT_TIMEOUT_SECONDS = 10.0
_MAX_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 18
_FILE_PIECE_BYTES = 1 << 23
_CONNECTION_BUFFER_BYTES = 1 << 20
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class FileBody:
    """`size` bytes of a regular file from its beginning; `told` is called with how many of them are sent."""

    file: IO[bytes]
    size: int
    told: Callable[[int], None]


Body = bytes | AsyncIterable[bytes] | FileBody


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server listens; `path` is before every path of a request."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> Origin:
        """Parse a URL. Raises ValueError for what is no http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is no http or https URL")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{url!r} has more than a scheme, a host, a port and a path")
        return cls(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class Connection:
    """Made by `open`; one exchange at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._used = time.monotonic()
        self.reused = False

    @classmethod
    async def open(cls, origin: Origin) -> Connection:
        """Connect. Raises NoServerError: nothing was sent then."""
        context = ssl.create_default_context() if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    origin.host, origin.port, ssl=context, limit=_CONNECTION_BUFFER_BYTES
                )
        except TimeoutError:
            raise NoServerError(f"no answer within {CONNECT_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            # asyncio puts a text of its own in the place of the system's.
            known = error.errno is not None and error.errno in errno.errorcode
            raise NoServerError(os.strerror(error.errno or 0) if known else str(error)) from error
        return cls(reader, writer)

    def fresh(self, seconds: float) -> bool:
        """Whether it was used so short a time ago, and the server has not closed it."""
        return (
            time.monotonic() - self._used < seconds
            and not self._writer.is_closing()
            and not self._reader.at_eof()
            and self._reader.exception() is None
        )

    def rest(self) -> None:
        """It has nothing to do for a while."""
        self.reused = True
        self._used = time.monotonic()

    def close(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def exchange(self, head: bytes, body: Body, seconds: float | None) -> Answer:
        """Send a request and give the answer when its head is there, `seconds` after the body at the latest. Raises
        LostConnectionError, TimeoutError; it is of no use any more then."""
        try:
            if isinstance(body, bytes):
                self._writer.write(head + body if body else head)
                async with asyncio.timeout(seconds):
                    await self._writer.drain()
                    return await self._answer()
            return await self._exchange_pieces(head, body, seconds)
        except (LostConnectionError, TimeoutError):
            raise
        except (OSError, EOFError) as error:
            raise LostConnectionError(f"the connection was lost: {error}", untouched=True) from error

    async def _exchange_pieces(
        self, head: bytes, body: AsyncIterable[bytes] | FileBody, seconds: float | None
    ) -> Answer:
        """As `exchange`: the server may answer before it has read everything, and then it need not."""
        answering = asyncio.create_task(self._answer())
        chunked = b"\r\ntransfer-encoding: chunked\r\n" in head
        complete = True
        try:
            self._writer.write(head)
            if isinstance(body, FileBody):
                complete = await self._send_file(body, answering)
                body = _nothing()
            async for piece in body:
                if answering.done():
                    complete = False
                    break
                if not piece:
                    continue
                self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                if not await self._drained(answering):
                    complete = False
                    break
            if complete and chunked:
                self._writer.write(b"0\r\n\r\n")
            async with asyncio.timeout(seconds):
                answer = await asyncio.shield(answering)
            answer.reusable = answer.reusable and complete
            return answer
        finally:
            if not answering.done():
                answering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answering

    async def _send_file(self, body: FileBody, answering: asyncio.Task[Answer]) -> bool:
        """Send it as the kernel has it, where that can be done; whether no answer came meanwhile."""
        loop, sent = asyncio.get_running_loop(), 0
        while sent < body.size:
            if not await self._drained(answering):
                return False
            most = min(_FILE_PIECE_BYTES, body.size - sent)
            try:
                size = await loop.sendfile(self._writer.transport, body.file, sent, most)
            except NotImplementedError:
                # Another event loop than asyncio's.
                body.file.seek(sent)
                piece = await asyncio.to_thread(body.file.read, min(_PIECE_BYTES, most))
                self._writer.write(piece)
                size = len(piece)
            except ConnectionError:
                # Why it closed may still be told.
                return False
            if not size:
                raise LostConnectionError("the file became shorter while it was sent")
            sent += size
            body.told(sent)
        return await self._drained(answering)

    async def _drained(self, answering: asyncio.Task[Answer]) -> bool:
        """Wait until more can be written; whether no answer came meanwhile."""
        draining = asyncio.ensure_future(self._writer.drain())
        try:
            # As a rule there is room at once, and the coroutine ends in its first step.
            await asyncio.sleep(0)
            if not draining.done():
                await asyncio.wait((draining, answering), return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                with contextlib.suppress(ConnectionError):
                    # Why it closed may still be told.
                    draining.result()
                    return not answering.done()
            return False
        finally:
            draining.cancel()

    async def _answer(self) -> Answer:
        while True:
            try:
                head = await self._reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise LostConnectionError("the head of the answer is too long to be one") from None
            except asyncio.IncompleteReadError as error:
                raise LostConnectionError(
                    "the server closed the connection without an answer", untouched=not error.partial
                ) from None
            if len(head) > _MAX_HEAD_BYTES:
                raise LostConnectionError("the head of the answer is too long to be one")
            first, *lines = head.decode("latin-1").split("\r\n")
            version, _, rest = first.partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise LostConnectionError("what answers does not speak HTTP")
            status = int(rest[:3])
            if status >= 200:
                break
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        reusable = version != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
        return Answer(self, self._reader, status, headers, reusable=reusable)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


class Answer:
    """An answer whose head is there. `reusable` says whether its connection may serve again once the body is read;
    whoever asked closes or reads it."""

    def __init__(
        self,
        connection: Connection,
        reader: asyncio.StreamReader,
        status: int,
        headers: dict[str, str],
        *,
        reusable: bool,
    ) -> None:
        self.connection = connection
        self.status = status
        self.headers = headers
        self.reusable = reusable
        self.finished = False
        self._reader = reader

    async def read(self) -> bytes:
        """The whole body. Raises LostConnectionError."""
        length = self.headers.get("content-length", "")
        if self.status in (204, 304) or length == "0":
            self.finished = True
            return b""
        if length.isdigit():
            with _losses():
                body = await self._reader.readexactly(int(length))
            self.finished = True
            return body
        return b"".join([piece async for piece in self.pieces()])

    async def json(self) -> Any:
        """The body as JSON, None for an empty one. Raises LostConnectionError, ValueError."""
        body = await self.read()
        return json.loads(body) if body else None

    async def pieces(self, seconds: float | None = None) -> AsyncIterator[bytes]:
        """The body as it comes. Raises LostConnectionError also when `seconds` go by without any of it."""
        if self.status in (204, 304):
            self.finished = True
            return
        with _losses():
            length = self.headers.get("content-length", "")
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                while size := int((await self._line(seconds)).partition(b";")[0], 16):
                    async for piece in self._exactly(size, seconds):
                        yield piece
                    await self._line(seconds)
                while await self._line(seconds):
                    pass
            elif length.isdigit():
                async for piece in self._exactly(int(length), seconds):
                    yield piece
            else:
                self.reusable = False
                while piece := await self._some(_PIECE_BYTES, seconds):
                    yield piece
        self.finished = True

    async def _line(self, seconds: float | None) -> bytes:
        async with asyncio.timeout(seconds):
            return (await self._reader.readuntil(b"\r\n"))[:-2]

    async def _exactly(self, size: int, seconds: float | None) -> AsyncIterator[bytes]:
        while size:
            piece = await self._some(min(size, _PIECE_BYTES), seconds)
            if not piece:
                raise LostConnectionError("the connection was lost in the middle of an answer")
            size -= len(piece)
            yield piece

    async def _some(self, size: int, seconds: float | None) -> bytes:
        async with asyncio.timeout(seconds):
            return await self._reader.read(size)


class _losses:  # noqa: N801 - reads as a statement
    """What ends a body early, as one error."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LostConnectionError) or not isinstance(error, OSError | EOFError | ValueError):
            return
        raise LostConnectionError(f"the connection was lost in the middle of an answer: {error}") from error
