# SPDX-License-Identifier: MIT
"""What a trace says of one command: what it wrote, how it ended, what ended it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Operation, arguments, process in the box.
Note = Callable[[str, Mapping[str, Any], int | None], None]


class Ended(Protocol):
    """What of a command is recorded."""

    pid: int | None
    exit_code: int | None
    signal: int | None
    timed_out: bool
    lost: str | None
    cpu_ms: float | None
    max_memory_bytes: int | None

    @property
    def elapsed_seconds(self) -> float:
        """Since its start."""


class CommandRecord:
    """`number` tells the commands of a sandbox apart in its trace."""

    def __init__(self, note: Note, number: int) -> None:
        self._note = note
        self._number = number
        self._bytes = [0, 0]
        self._hashes = [hashlib.sha256(), hashlib.sha256()]
        self._input_bytes = 0
        self._told = [0, 0]

    def wrote(self, data: bytes, *, error: bool) -> None:
        """It wrote to its stdout, or to its stderr where that is apart."""
        self._bytes[error] += len(data)
        self._hashes[error].update(data)

    def was_sent(self, size: int) -> None:
        """So many bytes were written to its stdin."""
        self._input_bytes += size

    def failed(self, error: BaseException) -> None:
        """It could not be started."""
        what = {"error": str(error) or type(error).__name__, "errno": getattr(error, "errno", None)}
        self._note("command.failed", {"command": self._number, **_known(what)}, None)

    def ended(self, command: Ended) -> None:
        """Its process has ended."""
        facts = {
            "exit_code": command.exit_code,
            "signal": command.signal,
            "timed_out": command.timed_out or None,
            "lost": command.lost,
            "cpu_ms": command.cpu_ms,
            "max_memory_bytes": command.max_memory_bytes,
            "stdin_bytes": self._input_bytes or None,
        }
        self._told = list(self._bytes)
        seconds = round(command.elapsed_seconds, 6)
        args = {"command": self._number, "seconds": seconds, **_known(facts), **self._output()}
        self._note("command.end", args, command.pid)

    def over(self, command: Ended) -> None:
        """Nothing that it started runs any more. What was left running may have written."""
        if self._bytes != self._told:
            self._note("command.output", {"command": self._number, **self._output()}, command.pid)

    def signalled(self, number: int, pid: int | None) -> None:
        """Its process group was sent a signal."""
        self._note("command.signal", {"command": self._number, "signal": number}, pid)

    def killed(self, grace_seconds: float, left: int | None, pid: int | None) -> None:
        """It was ended with everything that it started; so many processes are left, None where nobody said."""
        args = {"command": self._number, "grace_seconds": grace_seconds, "left": left}
        self._note("command.kill", args, pid)

    def _output(self) -> dict[str, Any]:
        return {
            name: {"bytes": size, "sha256": digest.hexdigest()}
            for name, size, digest in zip(("stdout", "stderr"), self._bytes, self._hashes, strict=True)
            if size
        }


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
