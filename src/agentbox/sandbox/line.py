# SPDX-License-Identifier: MIT
"""The line to a server that has the box: its refusals become the errors that a box of this process raises."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from agentbox import errors
from agentbox.errors import AgentboxError, NotFoundError, PolicySyntaxError, SandboxError, SandboxGoneError
from agentbox.sdk.blocking import BlockingTransport
from agentbox.sdk.errors import AgentboxHTTPError, LostConnectionError, NoServerError
from agentbox.sdk.http1 import Answer, Body, FileBody
from agentbox.sdk.transport import DEFAULT_TIMEOUT_SECONDS, Transport

SANDBOXES_PATH = "/v1/sandboxes"
# A server that is started again answers within this time.
_OUTAGE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 2.0
_PLACE = re.compile(r"(.*?):(\d+):(\d+): (.*)\Z", re.DOTALL)


class Line:
    """Requests about sandboxes of one server. Raises OSError for what is wrong with a file or a program in a box,
    AgentboxErrors of the same classes as a box of this process, and SandboxError for a server that does not answer."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Raises SandboxError for what is no address."""
        try:
            self._transport = Transport(url, api_key or None)
            self._blocking = BlockingTransport(url, api_key or None)
            self._api_key = api_key
        except ValueError as error:
            raise SandboxError(str(error), hint='for example url="http://127.0.0.1:8080"') from None

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def another(self) -> Line:
        """One to the same server, with connections of its own."""
        return Line(self.url, self._api_key)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        about: str = "",
        query: Mapping[str, object] | None = None,
        value: object = None,
        body: Body | None = None,
        length: int | None = None,
        again: bool | None = None,
        seconds: float | None = DEFAULT_TIMEOUT_SECONDS,
    ) -> Any:
        """The JSON of an answer. `about` is the file or program that an OSError names where the server does not."""
        async with self.open(
            method,
            path,
            about=about,
            query=query,
            value=value,
            body=body,
            length=length,
            again=again,
            seconds=seconds,
        ) as answer:
            return await answer.json()

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        about: str = "",
        query: Mapping[str, object] | None = None,
        value: object = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
        again: bool | None = None,
        seconds: float | None = DEFAULT_TIMEOUT_SECONDS,
    ) -> AsyncIterator[Answer]:
        """An answer, to be read within the block."""
        with self._as_own(about):
            async with self._transport.open(
                method,
                SANDBOXES_PATH + path,
                query=query,
                value=value,
                body=body,
                headers=headers,
                length=length,
                again=again,
                seconds=seconds,
            ) as answer:
                yield answer

    def post_here(self, path: str, value: object, *, about: str, seconds: float) -> Any:
        """As `ask`, waited for by the thread that asks, without a loop."""
        with self._as_own(about):
            return self._blocking.post(SANDBOXES_PATH + path, value, seconds)

    @contextlib.contextmanager
    def _as_own(self, about: str) -> Iterator[None]:
        try:
            yield
        except AgentboxHTTPError as error:
            raise _as_local(error, about) from None
        except NoServerError as error:
            raise NoAnswerError(
                f"no server answers at {self.url}: {error}",
                hint="start one with `agentbox serve`, or check the address",
            ) from error
        except TimeoutError as error:
            raise NoAnswerError(
                f"{self.url} did not answer in time; whether it was done is not known",
                hint="look at what is there before doing it again",
            ) from error
        except LostConnectionError as error:
            raise NoAnswerError(
                f"{self.url}: {error}; whether it was done is not known",
                hint="look at what is there before doing it again",
            ) from error

    def refused(self, body: Mapping[str, Any]) -> Exception:
        """The error that a refusal is which came after the head of its answer; `body` has its `status`."""
        return _as_local(AgentboxHTTPError(int(body["status"]), dict(body), None), "")

    async def ask_patiently(self, method: str, path: str, *, query: Mapping[str, object], seconds: float) -> Any:
        """As `ask`, for a request that changes nothing: made again for a minute while no server answers."""
        begun: float | None = None
        pause = 0.05
        while True:
            try:
                return await self.ask(method, path, query=query, seconds=seconds)
            except NoAnswerError:
                now = time.monotonic()
                begun = begun if begun is not None else now
                if now - begun > _OUTAGE_SECONDS:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def close(self) -> None:
        """Close its connections."""
        self._blocking.close()
        await self._transport.close()


class NoAnswerError(SandboxError):
    """The server does not answer, or its answer was lost on the way."""


def _known_errors(kind: type[AgentboxError]) -> dict[str, type[AgentboxError]]:
    found = {kind.code: kind}
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            found |= _known_errors(below)
    return found


_ERRORS = _known_errors(AgentboxError)


def _as_local(error: AgentboxHTTPError, about: str) -> Exception:
    body = error.body if isinstance(error.body, dict) else {}
    message, hint = _detail(body.get("detail", error.body)), error.hint
    if name := body.get("errno"):
        number = getattr(errno, str(name), errno.EIO)
        return OSError(number, os.strerror(number), str(body.get("path") or about or message))
    if error.code == SandboxGoneError.code:
        return SandboxGoneError(message, hint=hint)
    if error.code == NotFoundError.code and message.startswith("No sandbox"):
        return SandboxGoneError(message, hint="`agentbox sandbox ls` lists those of this key")
    if error.code == PolicySyntaxError.code:
        place = _PLACE.match(message)
        path, line, column, problem = place.groups() if place else ("<policy>", "1", "1", message)
        return PolicySyntaxError(problem, hint=hint, path=path, line=int(line), column=int(column))
    kind = _ERRORS.get(error.code, SandboxError)
    if kind in (AgentboxError, errors.InternalError):
        kind = SandboxError
    if error.request_id and error.status >= 500:
        hint = f"{hint} (request {error.request_id})".lstrip()
    return kind(message, hint=hint)


def _detail(detail: object) -> str:
    """The message of a refusal; of one of several fields, what is wrong with each."""
    if not isinstance(detail, list):
        return str(detail)
    found = []
    for one in detail:
        if isinstance(one, dict):
            place = ".".join(str(part) for part in one.get("loc", ()) if part != "body")
            found.append(f"{place}: {one.get('msg', one)}" if place else str(one.get("msg", one)))
    return "; ".join(found) or "the request was refused"


__all__ = ["SANDBOXES_PATH", "Answer", "Body", "FileBody", "Line", "NoAnswerError"]
