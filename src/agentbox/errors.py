# SPDX-License-Identifier: MIT
"""The error tree.

An exception says one of three things: the request was wrong, the box could not be built, or we have a bug.
What guest code does (a timeout, an OOM kill, a non-zero exit, too much output) is an outcome in the result.

    AgentboxError              code, message, hint
    +- RequestError            the caller's fault; nothing ran
    |  +- InvalidRequestError
    |  +- UnsupportedLanguageError
    |  +- UnknownBackendError
    |  +- NotFoundError
    |  +- QuotaExceededError
    +- OverloadedError         the queue is full; try again later
    |  +- QueueTimeoutError
    +- ConfigError             a setting has a bad value
    +- PolicyError             a policy cannot be used (also a ValueError)
    |  +- PolicySyntaxError    its text is wrong: path, line, column
    +- PolicyViolation         the policy denies what a program tried (also a PermissionError)
    +- IsolationError          the box could not be built
    |  +- BackendUnavailableError
    |  +- ConfinementError
    |  +- EngineError          a container engine refused a call
    |  +- UnguardedError
    +- WorkspaceError
    |  +- UnsafeArchiveError
    |  +- CheckpointError      a checkpoint could not be taken, so nothing was changed
    +- TraceError              a trace could not be written or read
    |  +- TraceTampered        it is not what was written
    |  +- TraceKeyError        the signing key cannot be used
    +- SandboxError            a durable sandbox cannot do what was asked
    |  +- SandboxGoneError     its box is gone; the workspace is kept
    |  +- SandboxPausedError   it is paused, and can be resumed
    +- ReplayDivergence        a replay went another way than its record
    +- InternalError           our bug
"""

from __future__ import annotations


class AgentboxError(Exception):
    """Base of every error that agentbox raises on purpose.

    `code` is a stable string that a program may compare, `message` says what happened and where, `hint` says what to
    do next. `str(error)` is the message alone.
    """

    code = "error"

    def __init__(self, message: str, *, hint: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data


class RequestError(AgentboxError):
    """The caller asked for something that cannot be done; nothing ran."""

    code = "request_error"


class InvalidRequestError(RequestError):
    """A field has a value that is not allowed."""

    code = "invalid_request"


class UnsupportedLanguageError(RequestError):
    """No interpreter is known for the language."""

    code = "unsupported_language"


class UnknownBackendError(RequestError):
    """The backend does not exist or the operator does not allow it."""

    code = "unknown_backend"


class NotFoundError(RequestError):
    """The named snapshot or run does not exist, or belongs to another key."""

    code = "not_found"


class QuotaExceededError(RequestError):
    """A stored thing would pass the operator's quota."""

    code = "quota_exceeded"


class OverloadedError(AgentboxError):
    """The admission queue is full. `data["retry_after_seconds"]` says when to try again."""

    code = "overloaded"


class QueueTimeoutError(OverloadedError):
    """A run waited too long for a place and did not begin. `data["retry_after_seconds"]` says when to try again."""

    code = "queue_timeout"


class ConfigError(AgentboxError):
    """A setting has a bad value; the message names the setting and the value."""

    code = "bad_setting"


class PolicyError(AgentboxError, ValueError):
    """A policy cannot be used here; the message says what is wrong, and nothing ran."""

    code = "bad_policy"


class PolicySyntaxError(PolicyError):
    """The text of a policy is wrong: `path`, `line`, `column`, `problem`, and `source` with `caret` below it."""

    code = "policy_syntax"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        path: str = "<policy>",
        line: int = 1,
        column: int = 1,
        problem: str = "",
        source: str = "",
    ) -> None:
        super().__init__(f"{path}:{line}:{column}: {message}", hint=hint, problem=problem)
        self.reason = message
        self.path = path
        self.line = line
        self.column = column
        self.problem = problem
        self.source = source

    @property
    def caret(self) -> str:
        """A line of white space and `^` that points at the column when it stands below `source`."""
        before = self.source[: self.column - 1]
        return "".join("\t" if character == "\t" else " " for character in before) + "^"


class PolicyViolation(AgentboxError, PermissionError):  # noqa: N818
    """The policy denies what the program tried, and it did not happen: `data["effect"]`, `data["target"]`."""

    code = "policy_violation"


class IsolationError(AgentboxError):
    """The box could not be built, so nothing ran (fail closed)."""

    code = "isolation_error"


class BackendUnavailableError(IsolationError):
    """The host lacks something that the backend needs; the hint says how to get it."""

    code = "backend_unavailable"


class ConfinementError(IsolationError):
    """A step of building the box failed: `data["step"]`, `data["errno"]`."""

    code = "confinement_failed"


class EngineError(IsolationError):
    """The Docker engine refused a call: `data["status"]` is its HTTP status. Never the result of a program."""

    code = "docker_error"


class UnguardedError(IsolationError):
    """The command would start without the guard, and nothing else would hold it."""

    code = "unguarded"


class WorkspaceError(AgentboxError):
    """Files could not be placed into, or taken out of, a workspace."""

    code = "workspace_error"


class UnsafeArchiveError(WorkspaceError):
    """An archive holds a member that could harm the host; the message names the member and the rule."""

    code = "unsafe_archive"


class CheckpointError(WorkspaceError):
    """The checkpoint that must come before the first change could not be taken, so nothing was changed."""

    code = "checkpoint_failed"


class TraceError(AgentboxError):
    """A trace could not be written or read. Whoever records a run must end it: no effect may go without a record."""

    code = "trace_error"


class TraceTampered(TraceError):  # noqa: N818
    """A trace is not what was written: `data["status"]`, and `data["index"]` of the first entry that shows it."""

    code = "trace_tampered"


class TraceKeyError(TraceError):
    """The key that signs traces is missing, is no key, or could have been read by others."""

    code = "trace_key"


class SandboxError(AgentboxError):
    """A durable sandbox could not be started, or cannot do what was asked; the message says why."""

    code = "sandbox_error"


class SandboxGoneError(SandboxError):
    """The box of a sandbox is gone, with everything that ran in it; its workspace is kept: `reset` builds it anew."""

    code = "sandbox_gone"


class SandboxPausedError(SandboxError):
    """A sandbox is paused: nothing in it runs, and nothing can be asked of it before it is resumed."""

    code = "sandbox_paused"


class ReplayDivergence(AgentboxError):  # noqa: N818
    """A replay did something else than its record: `data["step"]` of the first step that differs."""

    code = "replay_divergence"


class InternalError(AgentboxError):
    """A bug of agentbox; please report it."""

    code = "internal_error"
