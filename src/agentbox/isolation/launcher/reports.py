# SPDX-License-Identifier: MIT
"""What the exec judge tells the owner, who writes the trace.

A program must not wait for the trace, and a message for each start costs more than to judge it. So what was allowed is
told together with what comes after it, at the latest when the judge has been idle for a moment; a refusal at once.
"""

from __future__ import annotations

from itertools import islice

from agentbox.isolation.launcher import wire
from agentbox.light import contextlib, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MAX_WAITING = 64
_MAX_WAITING_BYTES = 1 << 18
_MAX_WORDS = 256
_MAX_WORD_BYTES = 4096
# The rest of the word are flags of the descriptor.
_SOCKET_KIND = 0xF


class Reports:
    """Reports in their order. An owner that is gone is told nothing more."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._bytes = 0
        self.waiting: list[dict[str, Any]] = []

    def spawn(self, pid: int, exe: str, argv: list[bytes], *, allowed: bool, reason: str) -> None:
        """A program was started, or refused."""
        words = shortened(argv)
        self._add(
            {"spawn": {"pid": pid, "exe": exe, "argv": words, "allowed": allowed, "reason": reason}},
            sum(map(len, words)),
        )
        if not allowed:
            self.flush()

    def witness(self, pid: int, found: dict[str, Any]) -> None:
        """Something was opened or connected to, or was to be."""
        self._add({"witness": {"pid": pid, **found}}, len(str(found.get("path", ""))))

    def socket(self, pid: int, family: int, kind: int, protocol: int) -> None:
        """A socket was refused, of the kind that these words of socket(2) mean."""
        self._add({"socket": {"pid": pid, "family": family, "type": kind & _SOCKET_KIND, "protocol": protocol}}, 0)

    def change(self, pid: int, call: str, path: str) -> None:
        """The first call that may change a file waits for the owner."""
        self._add({"change": {"pid": pid, "call": call, "path": path}}, 0)
        self.flush()

    def _add(self, report: dict[str, Any], size: int) -> None:
        if self._bytes + size > _MAX_WAITING_BYTES or len(self.waiting) >= _MAX_WAITING:
            self.flush()
        self.waiting.append(report)
        self._bytes += size

    def flush(self) -> None:
        """Tell everything."""
        if self.waiting:
            reports, self.waiting, self._bytes = self.waiting, [], 0
            with contextlib.suppress(OSError):
                wire.send(self._owner, {"reports": reports})


def shortened(argv: Iterable[bytes]) -> list[str]:
    """The words of a command line as a trace has them: so many, and none too long."""
    return [word[:_MAX_WORD_BYTES].decode(errors="surrogateescape") for word in islice(argv, _MAX_WORDS)]
