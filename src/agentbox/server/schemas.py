# SPDX-License-Identifier: MIT
"""Bodies of the HTTP API: JSON of a request becomes a RunRequest, a RunResult becomes JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from agentbox.isolation.interpreters import by_language
from agentbox.models import CapturedStream, Denial, Outcome, RequestedLimits, RunRequest, RunResult
from agentbox.server import fields

MAX_FILES = 1000
MIN_PIDS = 8
MAX_TEXT_ARGUMENTS = 256
MAX_POLICY_CHARACTERS = 16 << 10
MAX_ARGUMENT_BYTES = 1 << 20  # the kernel gives a program about 2 MiB for arguments and environment together


class Closed(BaseModel):
    """A body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class EncodedContent(Closed):
    """Bytes as standard base64."""

    base64: fields.Base64Text


Content = Annotated[str | EncodedContent, Field(union_mode="left_to_right")]


class LimitsBody(Closed):
    """Limits of one run. Null means the operator's default; above the operator's ceiling the ceiling applies."""

    timeout_seconds: fields.TimeoutSeconds = Field(None, description="wall-clock seconds of the program")
    memory_mb: fields.MemoryMb = Field(None, description="memory in units of 2**20 bytes")
    cpus: Annotated[float, Field(strict=True, ge=0.05, le=1024, allow_inf_nan=False)] | None = Field(
        None, description="processors that the box may keep busy"
    )
    # Fewer leave node hanging at its start, without a word, because it cannot start its threads.
    pids: Annotated[int, Field(strict=True, ge=MIN_PIDS, le=1 << 20)] | None = Field(
        None, description="processes and threads together"
    )
    disk_mb: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] | None = Field(
        None, description="files of the box in units of 2**20 bytes"
    )
    max_output_bytes: fields.MaxOutputBytes = Field(
        None, description="bytes kept of each of stdout and stderr: half from the start, half from the end"
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, value: object) -> object:
        """JSON has one kind of number: 64.0 is the integer 64 for the strict fields too."""
        if not isinstance(value, dict):
            return value
        return {
            name: int(item) if name in {"pids", "disk_mb"} and isinstance(item, float) and item.is_integer() else item
            for name, item in value.items()
        }


class RunBody(Closed):
    """One execution."""

    code: fields.Code = Field(description="the program; it reaches the interpreter as a file")
    language: Annotated[str, WithJsonSchema({"type": "string", "pattern": fields.LANGUAGE_PATTERN})] = Field(
        "python", description="python, javascript, node or bash, in any case"
    )
    limits: LimitsBody | None = None
    snapshot: fields.LaxBoolean = Field(False, description="keep the working directory afterwards")
    snapshot_id: (
        Annotated[str, Field(max_length=200), WithJsonSchema({"type": "string", "pattern": "^(?:[0-9a-f]{32})?$"})]
        | None
    ) = Field(None, description="start from this snapshot; empty means none")
    egress_allowlist: Annotated[list[fields.EgressEntry], Field(max_length=1000)] | None = Field(
        None, description="`host` or `host:port`; null is the operator's list, an empty list is no network"
    )
    stdin: Content | None = Field(None, description="standard input; null is empty")
    files: Annotated[dict[fields.RelativePath, Content], Field(max_length=MAX_FILES)] | None = Field(
        None, description="placed into the working directory before the run: relative path to content"
    )
    env: Annotated[dict[fields.EnvName, fields.Argument], Field(max_length=MAX_TEXT_ARGUMENTS)] | None = Field(
        None, description="environment variables of the program"
    )
    args: Annotated[list[fields.Argument], Field(max_length=MAX_TEXT_ARGUMENTS)] | None = Field(
        None, description="arguments of the program"
    )
    backend: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="isolation backend, of those that the operator allows"
    )
    return_files: Annotated[list[fields.RelativePath], Field(max_length=64)] | None = Field(
        None, description="patterns (`*`, `?`, `**`) of files to bring back"
    )
    policy: Annotated[str, Field(max_length=MAX_POLICY_CHARACTERS)] | None = Field(
        None, description="text of a policy that narrows what the program may touch; its paths are relative to /work"
    )
    trace: fields.LaxBoolean = Field(
        False, description="record a trace; a run with a policy has one anyway, and where the operator records all runs"
    )

    record: fields.LaxBoolean = Field(
        False,
        description="record a trace that can be replayed; code, files, stdin and variables are kept with it then."
        " Needs a policy, and Python or JavaScript",
    )

    @model_validator(mode="after")
    def _bounded_together(self) -> RunBody:
        texts = [*(self.args or ()), *(self.env or {}), *(self.env or {}).values()]
        if sum(len(text.encode()) for text in texts) > MAX_ARGUMENT_BYTES:
            raise PydanticCustomError("too_long", "args and env together must be at most 1 MiB")
        names = set(self.files or ())
        for name in names:
            parts = name.split("/")
            for end in range(1, len(parts)):
                if "/".join(parts[:end]) in names:
                    raise PydanticCustomError("file_conflict", "files holds a path that is also the folder of another")
        return self


def to_request(body: RunBody, owner: str) -> RunRequest:
    """The request of a valid body. Raises UnsupportedLanguageError, with the name as it was spelled."""
    by_language(body.language)
    limits = RequestedLimits(**body.limits.model_dump()) if body.limits else RequestedLimits()
    return RunRequest(
        code=body.code,
        language=body.language.lower(),
        limits=limits,
        snapshot=body.snapshot,
        snapshot_id=body.snapshot_id or None,
        egress_allowlist=None if body.egress_allowlist is None else tuple(body.egress_allowlist),
        stdin=b"" if body.stdin is None else fields.decoded(body.stdin),
        files={path: fields.decoded(content) for path, content in (body.files or {}).items()},
        env=dict(body.env or {}),
        args=tuple(body.args or ()),
        backend=body.backend,
        return_files=tuple(body.return_files or ()),
        policy=body.policy,
        trace=body.trace,
        record=body.record,
        owner=owner,
    )


def _text(stream: CapturedStream) -> tuple[str, str | None]:
    try:
        return stream.data.decode("utf-8"), None
    except UnicodeDecodeError:
        return stream.data.decode("utf-8", "replace"), base64.b64encode(stream.data).decode()


def result_body(result: RunResult) -> dict[str, Any]:
    """JSON of a result: the keys of the first API in their order, then the others."""
    stdout, stdout_base64 = _text(result.stdout)
    stderr, stderr_base64 = _text(result.stderr)
    limits = result.limits
    return {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": result.exit_code,
        "duration_ms": result.duration_ms,
        "language": result.language,
        "backend": result.backend,
        "snapshot_id": result.snapshot_id,
        "limits_applied": {
            "timeout_seconds": int(limits.timeout_seconds),
            "memory_mb": limits.memory_mb,
            "cpus": limits.cpus,
            "pids": limits.pids,
            "disk_mb": limits.disk_mb,
            "max_output_bytes": limits.max_output_bytes,
        },
        "oom_killed": result.oom_killed,
        "network_isolated": result.network_isolated,
        "egress_allowlist": list(result.egress_allowlist),
        "run_id": result.run_id,
        "outcome": result.outcome.value,
        "signal": result.signal,
        "stdout_bytes": result.stdout.total_bytes,
        "stderr_bytes": result.stderr.total_bytes,
        "stdout_truncated": result.stdout.truncated,
        "stderr_truncated": result.stderr.truncated,
        "stdout_base64": stdout_base64,
        "stderr_base64": stderr_base64,
        "files": _files_body(result.files),
        "enforcement": {
            name: getattr(result.enforcement, name).value
            for name in ("filesystem", "network", "exec", "memory", "pids", "cpu", "disk")
        },
        "warnings": list(result.warnings),
        "timings": {
            "queued_ms": result.timings.queued_ms,
            "start_ms": result.timings.start_ms,
            "start": result.timings.start,
            "run_ms": result.timings.run_ms,
        },
        "usage": {
            "cpu_ms": result.usage.cpu_ms,
            "max_memory_bytes": result.usage.max_memory_bytes,
            "processes": result.usage.processes,
        },
        "denials": [denial_body(denial) for denial in result.denials],
        "trace": None if result.trace is None else {"count": result.trace.count, "sha": result.trace.sha},
        "egress": {
            host: {"connections": seen.connections, "bytes_up": seen.bytes_up, "bytes_down": seen.bytes_down}
            for host, seen in result.egress.items()
        },
    }


def denial_body(denial: Denial) -> dict[str, Any]:
    """JSON of something that a policy did not allow."""
    return {
        "layer": denial.layer.value,
        "effect": denial.effect,
        "target": shown_path(denial.target),
        "reason": shown_path(denial.reason),
        "rule": denial.rule,
        "rule_missing": denial.rule_missing,
        "trace_index": denial.trace_index,
        "hint": denial.hint,
    }


def _files_body(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    return {
        shown_path(path): {"base64": base64.b64encode(content).decode(), "bytes": len(content)}
        for path, content in files.items()
    }


def shown_path(path: str) -> str:
    """A path as text that UTF-8 can carry: bytes of the name that are no UTF-8 appear as \\xNN."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def timed_out(result: RunResult) -> bool:
    """Whether the answer is 408 rather than 200."""
    return result.outcome is Outcome.TIMED_OUT
