# SPDX-License-Identifier: MIT
"""Calls that wait for the checkpoint of a run: the first one that can change a file, and all that come before there is
one, whatever program makes them.

What a call would change is not looked at, since other threads of its process could change what it says. So a call that
changes nothing in the end (an open of /dev/null for writing) may be the first one; a checkpoint is never late.
"""

from __future__ import annotations

import errno
import os

from agentbox.light import contextlib
from agentbox.linux import notify, ptrace
from agentbox.linux.syscalls import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.launcher.reports import Reports

# What a program is told when there can be no checkpoint: nothing may be written.
_REFUSED = errno.EROFS
# Where the path stands among the arguments, where it is not the first; descriptors have none.
_SECOND = ("at", "at2")
_DESCRIPTOR = ("fchmod", "fchown", "fremovexattr", "fsetxattr", "bind")


class Held:
    """The calls of one box. Before `begun`, no program of the run's has started."""

    def __init__(self, listener: int, proc: int, reports: Reports) -> None:
        self._listener = listener
        self._proc = proc
        self._reports = reports
        self._names = {nr: name for name in (*notify.CHANGING, *notify.OPENING) if (nr := number(name)) is not None}
        self._waiting: list[notify.Notification] = []
        self._decided: bool | None = None
        self.begun = False

    def takes(self, call: notify.Notification) -> bool:
        """Whether a call is answered here, now or later; else it may go on."""
        name = self._names.get(call.number)
        if name is None or not self.begun or not notify.changes_files(name, call.arguments) or self._decided:
            return False
        if self._decided is False:
            notify.refuse(self._listener, call, _REFUSED)
            return True
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._reports.change(call.pid, name, self._told(call, name))
        return True

    def decided(self, taken: bool) -> None:
        """The checkpoint is there, or cannot be taken."""
        self._decided = taken
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if taken:
                notify.let_through(self._listener, call)
            else:
                notify.refuse(self._listener, call, _REFUSED)

    def _told(self, call: notify.Notification, name: str) -> str:
        """What the call names, as its process says at this moment; '' where that cannot be told."""
        with contextlib.suppress(OSError):
            if name in _DESCRIPTOR:
                return os.readlink(f"{call.pid}/fd/{call.arguments[0] & 0xFFFFFFFF}", dir_fd=self._proc)
            named = ptrace.read_string(call.pid, call.arguments[1 if name.endswith(_SECOND) else 0])
            if named.startswith(b"/"):
                return named.decode(errors="surrogateescape")
            base = os.readlink(f"{call.pid}/cwd", dir_fd=self._proc)
            return os.path.join(base, named.decode(errors="surrogateescape"))
        return ""
