# SPDX-License-Identifier: MIT
"""Routes of files: read, written and moved by the agent in the box, as the box's user; the host follows no link."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbox.sandbox.file_info import FileInfo
from agentbox.server.problems import Problem
from agentbox.server.routing import Router
from agentbox.server.sandboxes import archives, arrivals
from agentbox.server.sandboxes.bodies import DirectoryBody, MoveBody
from agentbox.server.sandboxes.kinds import USERS
from agentbox.server.sandboxes.reading import Desk, Query, file_problem, json_answer
from agentbox.server.supervised import DISCONNECT, Occasion, supervised

MAX_ENTRIES = 100_000
MAX_DEPTH = 256
HOW = ("replace", "append", "new")
# A client that sends nothing of a body for so long has stopped.
STALL_SECONDS = 60.0
BASE = "/v1/sandboxes/{sandbox_id}/files"


def add(router: Router, desk: Desk) -> None:
    """Add them."""
    _add_contents(router, desk)
    _add_names(router, desk)
    _add_archives(router, desk)


def _add_contents(router: Router, desk: Desk) -> None:
    async def read(request: Request) -> ASGIApp:
        query = Query(request)
        path, offset, length = query.text("path"), query.whole("offset", 0), query.whole("length", -1, -1)
        user = user_of(query)
        sandbox = await desk.awake(request)
        return await begun(sandbox.files.stream(path, offset=offset, length=length, user=user), desk.stopping)

    async def write(request: Request) -> ASGIApp:
        query = Query(request)
        path, mode, how, user = query.text("path"), query.octal("mode"), query.choice("how", HOW), user_of(query)
        sandbox = await desk.awake(request)
        most = desk.settings.max_upload_bytes
        with file_errors():
            large = how == HOW[0] and arrivals.is_large(request, most)
            if large and await desk.supervised(request, arrivals.receive(request, sandbox, path, mode, user)):
                return Response(status_code=204)
            pieces = body_of(request, most)
            await desk.supervised(request, sandbox.files.write(path, pieces, mode=mode, how=how, user=user))
        return Response(status_code=204)

    router.add("GET", BASE, read)
    router.add("PUT", BASE, write)


def _add_archives(router: Router, desk: Desk) -> None:
    async def pack(request: Request) -> ASGIApp:
        query = Query(request)
        path, user = query.text("path", "."), user_of(query)
        sandbox = await desk.awake(request)
        return await begun(archives.pack(sandbox, path, user), desk.stopping, "application/x-tar")

    async def unpack(request: Request) -> ASGIApp:
        query = Query(request)
        path, user = query.text("path", "."), user_of(query)
        sandbox = await desk.awake(request)
        pieces = body_of(request, desk.settings.max_upload_bytes)
        return await _done(request, desk, archives.unpack(sandbox, path, pieces, user))

    router.add("GET", f"{BASE}/archive", pack)
    router.add("PUT", f"{BASE}/archive", unpack)


def _add_names(router: Router, desk: Desk) -> None:
    async def remove(request: Request) -> ASGIApp:
        query = Query(request)
        path, user = query.text("path"), user_of(query)
        sandbox = await desk.awake(request)
        return await _done(request, desk, sandbox.files.remove(path, user=user))

    async def info(request: Request) -> ASGIApp:
        query = Query(request)
        path, user = query.text("path"), user_of(query)
        sandbox = await desk.awake(request)
        with file_errors():
            return json_answer(entry(await sandbox.files.info(path, user=user)))

    async def list_all(request: Request) -> ASGIApp:
        query = Query(request)
        path, depth, user = query.text("path", "."), query.whole("depth", 1, -1, MAX_DEPTH), user_of(query)
        most = query.whole("max_entries", MAX_ENTRIES, 1, MAX_ENTRIES)
        sandbox = await desk.awake(request)
        listing = sandbox.files.list(path, depth=depth, user=user, max_entries=most)
        try:
            with file_errors():
                found = await desk.supervised(request, listing)
        except Problem as problem:
            if problem.extra.get("errno") == "EOVERFLOW":
                raise too_many(most) from problem
            raise
        return json_answer(await asyncio.to_thread(lambda: {"entries": [entry(one) for one in found]}))

    async def make_directory(request: Request) -> ASGIApp:
        body = await desk.body(request, DirectoryBody)
        user = user_of(Query(request))
        sandbox = await desk.awake(request)
        mode = 0o755 if body.mode is None else int(body.mode, 8)
        return await _done(request, desk, sandbox.files.make_directory(body.path, mode=mode, user=user))

    async def move(request: Request) -> ASGIApp:
        body = await desk.body(request, MoveBody)
        user = user_of(Query(request))
        sandbox = await desk.awake(request)
        return await _done(request, desk, sandbox.files.rename(body.path, body.to, user=user))

    router.add("DELETE", BASE, remove)
    router.add("GET", f"{BASE}/info", info)
    router.add("GET", f"{BASE}/list", list_all)
    router.add("POST", f"{BASE}/directory", make_directory)
    router.add("POST", f"{BASE}/move", move)


async def _done(request: Request, desk: Desk, work: Any) -> ASGIApp:
    with file_errors():
        await desk.supervised(request, work)
    return Response(status_code=204)


@contextlib.contextmanager
def file_errors() -> Any:
    """Errors of files become their answers."""
    try:
        yield
    except OSError as error:
        raise file_problem(error) from error


def user_of(query: Query) -> str:
    """As whom the files are touched; empty for the sandbox's user."""
    return query.choice("user", USERS, "")


def entry(info: FileInfo) -> dict[str, Any]:
    """JSON of something in a box."""
    raw = info.path.encode("utf-8", "surrogateescape")
    plain = shown_name(info.path)
    return {
        "path": plain,
        "path_b64": None if plain.encode() == raw else base64.b64encode(raw).decode(),
        "kind": info.kind,
        "size": info.size,
        "mode": info.mode,
        "modified": info.modified,
        "uid": info.uid,
        "gid": info.gid,
        "target": None if info.target is None else shown_name(info.target),
    }


def shown_name(text: str) -> str:
    """A name that JSON can carry."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


async def body_of(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """The body, piece by piece. Raises Problem (408, 413, 415), starlette's ClientDisconnect."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"", "identity"}:
        raise Problem(415, "Content-Encoding is not supported", "unsupported_encoding", "send it without compression")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    taken = 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                piece = await anext(stream, None)
        except TimeoutError:
            raise Problem(
                408, f"Nothing of the body arrived for {STALL_SECONDS:g} seconds", "body_timeout", "send it faster"
            ) from None
        if piece is None:
            return
        taken += len(piece)
        if taken > max_bytes:
            raise _too_large(max_bytes)
        if piece:
            yield piece


def too_many(most: int) -> Problem:
    """413 for a directory that is too large to be listed."""
    return Problem(413, f"There are more than {most} entries", "too_many_entries", "list parts of it, with less depth")


def _too_large(max_bytes: int) -> Problem:
    return Problem(
        413,
        f"The body is larger than {max_bytes} bytes",
        "body_too_large",
        "send less; the operator sets the limit with AGENTBOX_MAX_UPLOAD_BYTES",
    )


async def begun(
    pieces: AsyncIterator[bytes], stopping: Occasion, media_type: str = "application/octet-stream"
) -> ASGIApp:
    """An answer whose first piece is known, so that what is wrong with a file is still said with a status."""
    with file_errors():
        first = await anext(pieces, b"")
    return Pieces(first, pieces, stopping, media_type)


class Pieces:
    """An answer that is taken from its source as fast as the client reads it."""

    def __init__(self, first: bytes, pieces: AsyncIterator[bytes], stopping: Occasion, media_type: str) -> None:
        self._first = first
        self._pieces = pieces
        self._stopping = stopping
        self._media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. What goes wrong on the way ends the connection."""
        del receive
        await supervised(self._send(send), scope["state"][DISCONNECT], self._stopping)

    async def _send(self, send: Send) -> None:
        close: Callable[[], Awaitable[None]] | None = getattr(self._pieces, "aclose", None)
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-type", self._media_type.encode())],
                }
            )
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
