# SPDX-License-Identifier: MIT
"""What routes of sandboxes share: bodies and queries of requests, and answers to what goes wrong in a box."""

from __future__ import annotations

import asyncio
import errno
import math
import re
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import ASGIApp

from agentbox.config import Settings
from agentbox.errors import IsolationError, SandboxError
from agentbox.server import problems
from agentbox.server.body import BodyBudget, read_body
from agentbox.server.problems import Problem, invalid
from agentbox.server.routing import JsonAnswer
from agentbox.server.sandboxes.collection import Sandboxes
from agentbox.server.sandboxes.kept import KeptSandbox
from agentbox.server.supervised import DISCONNECT, Occasion, supervised
from agentbox.server.validation import bounded, parse_body

_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)
_WHOLE = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,20})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?\Z")
_STATUS = {
    errno.ENOENT: 404,
    errno.EACCES: 403,
    errno.EPERM: 403,
    errno.EROFS: 403,
    errno.ENOSPC: 507,
    errno.EDQUOT: 507,
}
# What files answer that is nobody's fault but the state of the files.
_CONFLICT = 409
# Above this size JSON is read and written in a thread, so that other requests go on.
INLINE_BYTES = 256 << 10


class Desk:
    """What every route needs."""

    def __init__(self, sandboxes: Sandboxes, settings: Settings, budget: BodyBudget, stopping: Occasion) -> None:
        self.sandboxes = sandboxes
        self.settings = settings
        self.stopping = stopping
        self._budget = budget

    def sandbox(self, request: Request) -> KeptSandbox:
        """The one that the path names. Raises NotFoundError."""
        return self.sandboxes.get(request.state.owner, request.path_params["sandbox_id"])

    async def awake(self, request: Request) -> KeptSandbox:
        """As `sandbox`, with a box. Raises Problem (410, 503)."""
        return await self.awaken(request.state.owner, request.path_params["sandbox_id"])

    async def awaken(self, owner: str, sandbox_id: str) -> KeptSandbox:
        """As `awake`, by name."""
        sandbox = self.sandboxes.get(owner, sandbox_id)
        await started(sandbox.wake())
        return sandbox

    async def present(self, request: Request) -> KeptSandbox:
        """As `sandbox`, with its workspace at hand, whether or not its box is gone. Raises Problem (503)."""
        sandbox = self.sandbox(request)
        await started(sandbox.attend())
        return sandbox

    async def body(self, request: Request, model: type[_Model], *, may_be_empty: bool = False) -> _Model:
        """The body. Raises Problem (408, 413, 415, 422)."""
        with self._budget.lease(request.state.owner) as lease:
            raw = await read_body(request, lease, self.settings.request_read_timeout_seconds)
            content_type = request.headers.get("content-type", "")
            if not raw and may_be_empty:
                raw, content_type = b"{}", "application/json"
            if len(raw) <= INLINE_BYTES:
                return parse_body(raw, content_type, model)
            return await asyncio.to_thread(parse_body, raw, content_type, model)

    def parsed(self, owner: str, raw: bytes, content_type: str, model: type[_Model]) -> _Model:
        """A body that is here, and is small. Raises Problem (413, 415, 422), OverloadedError."""
        with self._budget.lease(owner) as lease:
            lease.take(len(raw))
            return parse_body(raw, content_type, model)

    async def supervised(self, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, which ends when nobody waits for it any more."""
        return await supervised(work, request.scope["state"][DISCONNECT], self.stopping)


async def started(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of what makes a box; what the host lacks becomes the answer that says no more than that."""
    try:
        return await work
    except SandboxError as error:
        if isinstance(error.__cause__, IsolationError):
            raise problems.from_error(error.__cause__) from error
        if isinstance(error.__cause__, OSError):
            raise problems.from_error(IsolationError(str(error))) from error
        raise


def file_problem(error: OSError) -> Problem:
    """The answer to what files of a box said."""
    number = error.errno or errno.EIO
    name = errno.errorcode.get(number, "EIO")
    where = f"{shown(error.filename)}: " if isinstance(error.filename, str) else ""
    hint = {404: "look with .../files/list", 507: "remove files, or ask for more disk_mb"}
    status = _STATUS.get(number, _CONFLICT)
    return Problem(
        status, f"{where}{error.strerror or name}", "file_error", hint.get(status, ""), extra={"errno": name}
    )


def start_problem(error: OSError) -> Problem:
    """The answer to a command that cannot be started."""
    name = errno.errorcode.get(error.errno or errno.EIO, "EIO")
    where = f"{shown(error.filename)}: " if isinstance(error.filename, str) else ""
    return Problem(
        400,
        f"The command cannot be started: {where}{error.strerror or name}",
        "cannot_start",
        "see whether it is there, and whether processes are free",
        extra={"errno": name, "path": shown(error.filename) if isinstance(error.filename, str) else None},
    )


def shown(text: str) -> str:
    """Text that JSON can carry, cut to a bounded size."""
    text = text[:1000].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class Query:
    """The query of a request; a name that occurs twice is a fault. Every method raises Problem (422)."""

    def __init__(self, request: Request) -> None:
        try:
            pairs = parse_qsl(
                request.scope["query_string"].decode("latin-1"),
                keep_blank_values=True,
                encoding="utf-8",
                errors="surrogateescape",
                max_num_fields=100,
            )
        except ValueError as error:
            raise fault("query", str(error), "") from None
        self._values: dict[str, str] = {}
        for name, value in pairs:
            if name in self._values:
                raise fault(name, "Must be given once", value)
            self._values[name] = value

    def whole(self, name: str, default: int, low: int = 0, high: int = (1 << 53) - 1) -> int:
        """A whole number."""
        value = self._values.get(name)
        if value is None:
            return default
        digits = value.removeprefix("-")
        if not _WHOLE.match(digits) or not low <= int(value) <= high or value == "-0":
            raise fault(name, f"Must be a whole number from {low} to {high}", value)
        return int(value)

    def seconds(self, name: str, default: float | None, high: float) -> float | None:
        """Seconds from 0 on."""
        value = self._values.get(name)
        if value is None:
            return default
        if not _NUMBER.match(value) or not math.isfinite(float(value)) or float(value) > high:
            raise fault(name, f"Must be a number of seconds from 0 to {high:g}", value)
        return float(value)

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words; where nothing is said `default`, or else the first."""
        value = self._values.get(name)
        if value is None:
            return choices[0] if default is None else default
        if value not in choices:
            raise fault(name, f"Must be one of {', '.join(choices)}", value)
        return value

    def truth(self, name: str) -> bool:
        """Whether it is true; not where nothing is said."""
        return self.choice(name, ("false", "true")) == "true"

    def text(self, name: str, default: str | None = None, longest: int = 4096) -> str:
        """A text without NUL; `default` None is one that must be given."""
        value = self._values.get(name, default)
        if value is None:
            raise invalid([{"type": "missing", "loc": ["query", name], "msg": "Field required", "input": None}])
        if not 0 < len(value) <= longest or "\0" in value:
            raise fault(name, f"Must be 1 to {longest} characters without NUL", value)
        return value

    def octal(self, name: str) -> int | None:
        """Permission bits as octal digits."""
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-7]{3,4}", value) or int(value, 8) > 0o777:
            raise fault(name, "Must be permission bits such as 0644", value)
        return int(value, 8)


def fault(name: str, message: str, value: str) -> Problem:
    """422 about a part of the query."""
    return invalid([{"type": "query", "loc": ["query", name], "msg": message, "input": bounded(value)}])


def json_answer(body: object, status: int = 200) -> ASGIApp:
    """An answer of JSON."""
    return JsonAnswer(problems.encode(body), status)
