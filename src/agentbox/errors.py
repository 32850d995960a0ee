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
    +- ConfigError             a setting has a bad value
    +- IsolationError          the box could not be built
    |  +- BackendUnavailableError
    |  +- ConfinementError
    +- WorkspaceError
    |  +- UnsafeArchiveError
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


class ConfigError(AgentboxError):
    """A setting has a bad value; the message names the setting and the value."""

    code = "bad_setting"


class IsolationError(AgentboxError):
    """The box could not be built, so nothing ran (fail closed)."""

    code = "isolation_error"


class BackendUnavailableError(IsolationError):
    """The host lacks something that the backend needs; the hint says how to get it."""

    code = "backend_unavailable"


class ConfinementError(IsolationError):
    """A step of building the box failed: `data["step"]`, `data["errno"]`."""

    code = "confinement_failed"


class WorkspaceError(AgentboxError):
    """Files could not be placed into, or taken out of, a workspace."""

    code = "workspace_error"


class UnsafeArchiveError(WorkspaceError):
    """An archive holds a member that could harm the host; the message names the member and the rule."""

    code = "unsafe_archive"


class InternalError(AgentboxError):
    """A bug of agentbox; please report it."""

    code = "internal_error"
