# SPDX-License-Identifier: MIT
"""What a trace says of one command: what it wrote, how it ended, what ended it.

A command may take no longer than a millisecond, so what can wait is done by the thread that writes the trace. How a
command ended is what the agent in the box says: the guest's word, and recorded as that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agentbox.trace.record import Origin

    # Operation; arguments, or what gives them later; process in the box; who says so.
    Note = Callable[[str, Mapping[str, Any] | Callable[[], Mapping[str, Any]], int | None, Origin], None]


_UNHASHED_BYTES = 8192


class Ended(Protocol):
    """What of a command is recorded; nothing of it changes once it has ended."""

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


class _Stream:
    """What was written to one of its streams. Little is kept as it is: to begin a hash is dear."""

    __slots__ = ("_digest", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._digest: Any = None

    def add(self, data: bytes) -> None:
        """More of it."""
        self.size += len(data)
        if self._digest is None:
            self._pieces.append(data)
            if self.size <= _UNHASHED_BYTES:
                return
            self._digest = hashlib.sha256()
            data = b"".join(self._pieces)
            self._pieces.clear()
        self._digest.update(data)

    def now(self) -> Callable[[], tuple[int, str]]:
        """Its size and its hash as they are now."""
        size, pieces = self.size, tuple(self._pieces)
        digest = None if self._digest is None else self._digest.copy()
        return lambda: (size, (digest or hashlib.sha256(b"".join(pieces))).hexdigest())


class CommandRecord:
    """`number` tells the commands of a sandbox apart in its trace."""

    __slots__ = ("_input_bytes", "_note", "_number", "_streams", "_told")

    def __init__(self, note: Note, number: int) -> None:
        self._note = note
        self._number = number
        self._streams: dict[str, _Stream] = {}
        self._input_bytes = 0
        # Whether everything that it wrote is told.
        self._told = True

    def wrote(self, data: bytes, *, error: bool) -> None:
        """It wrote to its stdout, or to its stderr where that is apart."""
        name = "stderr" if error else "stdout"
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = _Stream()
        stream.add(data)
        self._told = False

    def was_sent(self, size: int) -> None:
        """So many bytes were written to its stdin."""
        self._input_bytes += size

    def failed(self, error: BaseException) -> None:
        """It could not be started."""
        what = {"error": str(error) or type(error).__name__, "errno": getattr(error, "errno", None)}
        self._note("command.failed", {"command": self._number, **_known(what)}, None, "guest")

    def ended(self, command: Ended) -> None:
        """Its process has ended."""
        self._told = True
        number, sent, output = self._number, self._input_bytes, self._output()

        def args() -> dict[str, Any]:
            # Integers alone: what has fractions, or objects in it, takes three times as long to spell.
            facts = {
                "exit_code": command.exit_code,
                "signal": command.signal,
                "timed_out": command.timed_out or None,
                "lost": command.lost,
                "elapsed_us": int(command.elapsed_seconds * 1e6),
                "cpu_us": None if command.cpu_ms is None else int(command.cpu_ms * 1e3),
                "max_memory_bytes": command.max_memory_bytes,
                "stdin_bytes": sent or None,
            }
            return {"command": number, **_known(facts), **_all(output)}

        self._note("command.end", args, command.pid, "guest")

    def closed(self, command: Ended) -> None:
        """Nobody holds its output any more. What it left running may have written."""
        if not self._told:
            self._told = True
            self._note("command.output", {"command": self._number, **_all(self._output())}, command.pid, "guest")

    def signalled(self, number: int, pid: int | None) -> None:
        """Its process group was sent a signal."""
        self._note("command.signal", {"command": self._number, "signal": number}, pid, "supervisor")

    def killed(self, grace_seconds: float, left: int | None, pid: int | None) -> None:
        """It was ended with everything that it started; so many processes are left, None where nobody said."""
        args = {"command": self._number, "grace_seconds": grace_seconds, "left": left}
        self._note("command.kill", args, pid, "supervisor")

    def _output(self) -> list[tuple[str, Callable[[], tuple[int, str]]]]:
        return [(name, stream.now()) for name, stream in self._streams.items()]


def _all(output: list[tuple[str, Callable[[], tuple[int, str]]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, now in output:
        found[f"{name}_bytes"], found[f"{name}_sha256"] = now()
    return found


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
