# SPDX-License-Identifier: MIT
"""What both clients share, without any I/O: requests become payloads, bodies become answers, lines become events."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from agentbox.sdk.errors import AgentboxHTTPError

Content = str | bytes
RUN_PATH = "/v1/run"
SNAPSHOTS_PATH = "/v1/snapshots"
RUNS_PATH = "/v1/runs"
KEY_PATH = "/v1/key"
EVENT_STREAM = {"Accept": "text/event-stream"}
LARGEST_TIMEOUT_SECONDS = 300
# A run may wait for its place, and the server answers one that times out; the client must wait longer than both take.
LARGEST_WAIT_SECONDS = 300
READ_TIMEOUT_SECONDS = LARGEST_TIMEOUT_SECONDS + LARGEST_WAIT_SECONDS + 30.0
CONNECT_TIMEOUT_SECONDS = 10.0
BUSY_STATUS = 429


def headers(api_key: str | None) -> dict[str, str]:
    """Headers of every request."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def snapshot_path(snapshot_id: str) -> str:
    """Path of one snapshot. Raises ValueError for what cannot be an id, before it could change the path."""
    if not snapshot_id.isalnum():
        raise ValueError(f"not a snapshot id: {snapshot_id!r}")
    return f"{SNAPSHOTS_PATH}/{snapshot_id}"


def trace_path(run_id: str) -> str:
    """Path of the trace of one run. Raises ValueError for what cannot be an id."""
    if not run_id.isalnum():
        raise ValueError(f"not a run id: {run_id!r}")
    return f"{RUNS_PATH}/{run_id}/trace"


def _content(value: Content) -> str | dict[str, str]:
    return value if isinstance(value, str) else {"base64": base64.b64encode(value).decode()}


def run_payload(
    code: str,
    language: str = "python",
    timeout_seconds: int | None = None,
    snapshot: bool = False,
    snapshot_id: str | None = None,
    memory_mb: int | None = None,
    egress_allowlist: Sequence[str] | None = None,
    *,
    stdin: Content | None = None,
    files: Mapping[str, Content] | None = None,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] | None = None,
    cpus: float | None = None,
    pids: int | None = None,
    disk_mb: int | None = None,
    max_output_bytes: int | None = None,
    backend: str | None = None,
    return_files: Sequence[str] | None = None,
    policy: str | None = None,
    trace: bool = False,
) -> dict[str, Any]:
    """The JSON of a run: code and language always, of the rest only what was given."""
    limits = {
        "timeout_seconds": timeout_seconds,
        "memory_mb": memory_mb,
        "cpus": cpus,
        "pids": pids,
        "disk_mb": disk_mb,
        "max_output_bytes": max_output_bytes,
    }
    limits = {name: value for name, value in limits.items() if value is not None}
    optional = {
        "limits": limits or None,
        "snapshot": True if snapshot else None,
        "snapshot_id": snapshot_id or None,
        "egress_allowlist": _items(egress_allowlist),
        "stdin": None if stdin is None else _content(stdin),
        "files": None if files is None else {path: _content(content) for path, content in files.items()},
        "env": None if env is None else dict(env),
        "args": _items(args),
        "backend": backend,
        "return_files": _items(return_files),
        "policy": policy,
        "trace": True if trace else None,
    }
    return {
        "code": code,
        "language": language,
        **{name: value for name, value in optional.items() if value is not None},
    }


class NewFields(TypedDict, total=False):
    """Keyword arguments of a run that the first client did not have."""

    stdin: Content | None
    files: Mapping[str, Content] | None
    env: Mapping[str, str] | None
    args: Sequence[str] | None
    cpus: float | None
    pids: int | None
    disk_mb: int | None
    max_output_bytes: int | None
    backend: str | None
    return_files: Sequence[str] | None
    policy: str | None
    trace: bool


class RunFields(NewFields, total=False):
    """All keyword arguments of a run besides code and language."""

    timeout_seconds: int | None
    snapshot: bool
    snapshot_id: str | None
    memory_mb: int | None
    egress_allowlist: Sequence[str] | None


def _items(values: Sequence[str] | None) -> Any:
    """A list; a lone string stays one, so that the server refuses it instead of reading its characters."""
    return values if values is None or isinstance(values, str) else list(values)


class RunResponse(dict[str, Any]):
    """The server's answer to a run: a dict whose keys are attributes too. `response["stdout"] is response.stdout`."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    language: str
    backend: str
    snapshot_id: str | None
    limits_applied: dict[str, Any]
    oom_killed: bool
    network_isolated: bool
    egress_allowlist: list[str]
    run_id: str
    outcome: str
    signal: int | None
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_base64: str | None
    stderr_base64: str | None
    files: dict[str, dict[str, Any]]
    enforcement: dict[str, str]
    warnings: list[str]
    timings: dict[str, float]
    usage: dict[str, Any]
    denials: list[dict[str, Any]]
    trace: dict[str, Any] | None
    egress: dict[str, dict[str, int]]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the server's answer has no {name!r}") from None

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.get("exit_code") == 0 and self.get("outcome", "exited") == "exited"

    def stdout_data(self) -> bytes:
        """Standard output as the program wrote it."""
        return _data(self, "stdout")

    def stderr_data(self) -> bytes:
        """Standard error as the program wrote it."""
        return _data(self, "stderr")

    def file_data(self, path: str) -> bytes:
        """A file that return_files brought back. Raises KeyError."""
        return base64.b64decode(self["files"][path]["base64"])


def _data(response: Mapping[str, Any], stream: str) -> bytes:
    encoded = response.get(f"{stream}_base64")
    return base64.b64decode(encoded) if encoded else str(response[stream]).encode()


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a streamed run: `kind` is stdout, stderr or result.

    `data` are the bytes of an output event, `text` the same as text (bytes that are not UTF-8 replaced); `seq` counts
    output events from 1. A result event has `result`, and seq 0.
    """

    kind: str
    seq: int = 0
    data: bytes = b""
    result: RunResponse | None = None

    @property
    def text(self) -> str:
        """The output as text."""
        return self.data.decode("utf-8", "replace")


class EventParser:
    """Lines of a text/event-stream become events. Raises AgentboxHTTPError at an `error` event."""

    def __init__(self) -> None:
        self._kind = ""
        self._data: list[str] = []
        self.ended = False

    def feed(self, line: str) -> Iterator[Event]:
        """The event that this line completes, if any."""
        if line.startswith("event:"):
            self._kind = line[6:].strip()
        elif line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            kind, body = self._kind, json.loads("\n".join(self._data))
            self._kind, self._data = "", []
            yield from self._event(kind, body)

    def _event(self, kind: str, body: dict[str, Any]) -> Iterator[Event]:
        if kind == "error":
            raise AgentboxHTTPError(int(body.get("status", 500)), body)
        if kind == "result":
            self.ended = True
            yield Event("result", result=RunResponse(body))
        elif kind in {"stdout", "stderr"}:
            data = base64.b64decode(body["b64"]) if "b64" in body else body["text"].encode()
            yield Event(kind, body["seq"], data)


class Answer(Protocol):
    """What is read of a response."""

    @property
    def status_code(self) -> int:
        """The status."""

    @property
    def text(self) -> str:
        """The body as text."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, whatever the case of their names."""

    def json(self) -> Any:
        """The body as JSON."""


def checked(answer: Answer) -> Any:
    """The JSON of a success, None of an empty one. Raises AgentboxHTTPError."""
    refused(answer)
    return None if answer.status_code == 204 else answer.json()


def refused(answer: Answer) -> None:
    """Raise AgentboxHTTPError for an answer of 400 or more, whose body has been read."""
    if answer.status_code < 400:
        return
    try:
        body = answer.json()
    except ValueError:
        body = answer.text
    raise AgentboxHTTPError(answer.status_code, body, answer.headers.get("retry-after"))


class Patience:
    """How often a client comes back to a server that is busy. Only status 429 counts: then nothing ran."""

    def __init__(self, retries: int) -> None:
        self._left = retries

    def seconds(self, error: AgentboxHTTPError) -> float:
        """How long to wait before the next attempt. Raises `error` where there is none to come."""
        if error.status != BUSY_STATUS or self._left <= 0:
            raise error
        self._left -= 1
        # Not all who were refused together come back together.
        return (error.retry_after_seconds or 1.0) * random.uniform(1.0, 1.25)  # noqa: S311
