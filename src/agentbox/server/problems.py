# SPDX-License-Identifier: MIT
"""The only place that knows status codes: an error becomes a status, headers and a JSON body.

Bodies are `{detail, code, hint, request_id}`. `detail` is text, and for 422 the list of faults. Nothing here shows a
traceback or a path of the host: errors of the host's side keep their message for the log and show a fixed text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from agentbox import errors
from agentbox.models import RunResult
from agentbox.server.schemas import result_body

# Absolute paths, but for those inside the box and those of the API.
_HOST_PATH = re.compile(r"(?<![\w./])/(?!work\b|v1/)[^\s'\"`,;:()]+")

# The first class that matches decides; subclasses stand before their base.
STATUS: tuple[tuple[type[errors.AgentboxError], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.QuotaExceededError, 409),
    (errors.RequestError, 400),
    (errors.PolicyError, 400),
    (errors.OverloadedError, 429),
    (errors.IsolationError, 503),
    (errors.UnsafeArchiveError, 422),
    (errors.WorkspaceError, 400),
    (errors.TraceError, 503),
    (errors.SandboxGoneError, 410),
    (errors.SandboxError, 409),
    (errors.ConfigError, 500),
    (errors.InternalError, 500),
)

# Messages of these are about the host; a caller gets the text, the log gets the message.
HOST_SIDE: tuple[tuple[type[errors.AgentboxError], str, str], ...] = (
    (
        errors.BackendUnavailableError,
        "The isolation backend is not available on this host",
        "the operator finds the missing requirement with `agentbox doctor`",
    ),
    (
        errors.IsolationError,
        "The box could not be built, so nothing ran",
        "try again; the operator finds the cause in the server's log",
    ),
    (
        errors.TraceError,
        "The trace of the run could not be written, so the run was not begun, or was ended",
        "let the program start fewer programs if a trace cannot hold what it does; the operator finds the cause in the "
        "server's log",
    ),
    (errors.ConfigError, "Internal Server Error", "the operator finds the cause in the server's log"),
    (errors.InternalError, "Internal Server Error", "please report it, with the request id"),
)


class Problem(Exception):  # noqa: N818 - the word of the HTTP world
    """An answer that is not a success. Raise it anywhere below the outermost layer."""

    def __init__(
        self,
        status: int,
        detail: str | list[dict[str, Any]],
        code: str,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.hint = hint
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self, request_id: str) -> dict[str, Any]:
        """The JSON body."""
        return {
            "detail": self.detail,
            "code": self.code,
            "hint": self.hint,
            "request_id": request_id,
            **({"retry_after_seconds": int(self.headers["Retry-After"])} if "Retry-After" in self.headers else {}),
            **self.extra,
        }


def encode(body: object) -> bytes:
    """JSON bytes. A lone surrogate cannot occur in what we send: it is a ValueError here."""
    return to_json(body, inf_nan_mode="null")


def from_error(error: BaseException, *, on_run: bool = False) -> Problem:
    """The answer for an exception. `on_run`: a missing snapshot is the request's fault (400) rather than 404."""
    if isinstance(error, Problem):
        return error
    if not isinstance(error, errors.AgentboxError):
        return Problem(500, "Internal Server Error", "internal_error", "please report it, with the request id")
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    headers = {}
    if on_run and isinstance(error, errors.NotFoundError):
        status = 400
    if isinstance(error, errors.OverloadedError):
        headers["Retry-After"] = str(max(1, round(float(str(error.data.get("retry_after_seconds", 1))))))
    for kind, detail, hint in HOST_SIDE:
        if isinstance(error, kind):
            return Problem(status, detail, error.code, hint, headers)
    message, hint = _printable(error.message), error.hint
    if isinstance(error, errors.WorkspaceError):
        message, hint = _without_host_paths(message), _without_host_paths(hint)
    if isinstance(error, errors.PolicySyntaxError):
        return Problem(status, message, error.code, hint, headers, {"policy": _policy_fault(error)})
    if status == 422:
        return Problem(422, [_fault(error.code, message)], error.code, hint, headers)
    result = error.data.get("result")
    if not isinstance(result, RunResult):
        return Problem(status, message, error.code, hint, headers)
    if status == 400:
        status = 503  # nothing was wrong with the request: it ran, and the server could not keep its files
    return Problem(status, message, error.code, hint, headers, {"result": result_body(result)})


def _policy_fault(error: errors.PolicySyntaxError) -> dict[str, Any]:
    """Where the text of a policy is wrong; `caret` points at it when it is shown below `source`."""
    return {
        "line": error.line,
        "column": error.column,
        "problem": error.problem,
        "reason": error.reason,
        "source": error.source,
        "caret": error.caret if error.source else "",
    }


def _fault(code: str, message: str) -> dict[str, Any]:
    return {"type": code, "loc": ["body", "snapshot_id"], "msg": message, "input": None}


def timed_out(result: RunResult) -> Problem:
    """408 with everything that is known about the run."""
    return Problem(
        408,
        "Execution timed out",
        "timed_out",
        "raise limits.timeout_seconds, or make the program do less; result holds what it did until then",
        extra={"result": result_body(result)},
    )


def invalid(faults: Iterable[dict[str, Any]]) -> Problem:
    """422 with the list of faults."""
    return Problem(422, list(faults), "invalid_request", "detail names each field and what is wrong with it")


def _without_host_paths(text: str) -> str:
    return _HOST_PATH.sub("(a path of the server)", text)


def _printable(text: str) -> str:
    if len(text) > 1000:
        text = text[:1000] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode()
