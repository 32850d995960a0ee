# SPDX-License-Identifier: MIT
"""The only place that knows exit codes of the command line."""

from __future__ import annotations

from agentbox.errors import ConfigError, IsolationError, RequestError, UnguardedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.errors import AgentboxError

OK = 0
FAILURE = 1  # the answer is no: no server answers, the default backend cannot be used, or agentbox has a bug
USAGE = 2  # an option or a setting has a value that cannot be used; nothing was started
CANNOT_LISTEN = 3  # the address is taken or may not be used
BACKEND_UNAVAILABLE = 4  # the host lacks what the chosen backend needs; `agentbox doctor` tells what
TRACE_INCOMPLETE = 5  # nothing was changed as far as the trace goes, but it has no end
TRACE_NOT_TRUSTED = 6  # no key that is trusted here signed the trace
NOT_A_TRACE = 7
NOT_ARMED = 70  # the guard could not be armed, and nothing else would hold the command
NOT_EXECUTABLE = 126  # as shells say it
NO_PROGRAM = 127
INTERRUPTED = 130  # Ctrl-C, as after signal 2

MEANINGS: dict[int, str] = {
    OK: "done",
    FAILURE: "the answer is no (no server answers, the default backend cannot be used, the trace was tampered with, the"
    " replay or the other trace is different), or an internal error",
    USAGE: "an option or an `AGENTBOX_*` setting has a value that cannot be used",
    CANNOT_LISTEN: "the address is taken or may not be used",
    BACKEND_UNAVAILABLE: "this host lacks something that the chosen backend needs",
    TRACE_INCOMPLETE: "the trace has no end: its run was killed or still runs (`agentbox verify`, `replay`)",
    TRACE_NOT_TRUSTED: "no key that is trusted here signed the trace (`agentbox verify`, `replay`)",
    NOT_A_TRACE: "the file is no trace (`agentbox verify`, `replay`)",
    NOT_ARMED: "the guard could not be armed, and nothing else would hold the command (`--isolation guard`)",
    NOT_EXECUTABLE: "the program may not be executed in the box (`agentbox sandbox exec`)",
    NO_PROGRAM: "the box has no such program (`agentbox sandbox exec`)",
    INTERRUPTED: "interrupted (Ctrl-C)",
}


# The first class that an error belongs to decides; every other error is a FAILURE.
_CODES: tuple[tuple[type[AgentboxError], int], ...] = (
    (ConfigError, USAGE),
    (RequestError, USAGE),
    (UnguardedError, NOT_ARMED),
    (IsolationError, BACKEND_UNAVAILABLE),
)


def for_error(error: type[AgentboxError]) -> int:
    """The exit code of a command that was ended by an error of this class."""
    return next((code for kind, code in _CODES if issubclass(error, kind)), FAILURE)


_VERDICTS = {"ok": OK, "unsealed": TRACE_INCOMPLETE, "torn": TRACE_INCOMPLETE}
_VERDICTS |= {"wrong_key": TRACE_NOT_TRUSTED, "not_a_trace": NOT_A_TRACE}


def for_verdict(status: str) -> int:
    """The exit code of `agentbox verify`; whatever means that somebody changed the trace is a FAILURE."""
    return _VERDICTS.get(status, FAILURE)
