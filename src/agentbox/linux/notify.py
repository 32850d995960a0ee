# SPDX-License-Identifier: MIT
"""Seccomp user notification: a filter that asks a supervisor, and the supervisor's side of it."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from agentbox.linux import foreign, seccomp
from agentbox.linux.process import forbid_new_privileges
from agentbox.linux.syscalls import libc, number, syscall

_SET_MODE_FILTER = 1
_NEW_LISTENER = 8
# A listener must not fail with EBUSY beside another filter's TSYNC, and the waiter must only be woken by what kills it:
# otherwise a signal handler would restart the call and be asked twice (Linux 5.19).
_WAIT_KILLABLE_RECV = 32

_RECV = 0xC0502100
_SEND = 0xC0182101
_ID_VALID = 0x40082102
_SET_FLAGS = 0x40082104
_SYNC_WAKE_UP = 1
_CONTINUE = 1

# Calls that can change a file system by what they say, and opening, which can by its flags: what is written to a
# descriptor was opened for it. `bind` makes a socket's file.
CHANGING = (
    "bind", "chmod", "chown", "creat", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fremovexattr",
    "fsetxattr", "futimesat", "lchown", "link", "linkat", "lremovexattr", "lsetxattr", "mkdir", "mkdirat", "mknod",
    "mknodat", "removexattr", "rename", "renameat", "renameat2", "rmdir", "setxattr", "symlink", "symlinkat",
    "truncate", "unlink", "unlinkat", "utime", "utimensat", "utimes",
)  # fmt: skip
# Where the flags of an open stand among its arguments.
OPENING = {"open": 1, "openat": 2}
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC; O_TMPFILE needs one of the first two.
CHANGING_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000

_USER_NOTIF, _ALLOW = 0x7FC00000, 0x7FFF0000
_NUMBER, _ARCHITECTURE = 0, 4
_EQUAL, _SOME = 0x15, 0x45
_FIRST_ARGUMENT = 16
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")


class Notification:
    """A call that waits for an answer. `pid` is the thread's, as the supervisor's PID namespace sees it. Nobody changes
    it."""

    # Made for every execve of a box, so it is made as cheaply as can be.
    __slots__ = ("arguments", "id", "number", "pid")

    def __init__(self, identifier: int, pid: int, number: int, arguments: tuple[int, ...]) -> None:
        self.id = identifier
        self.pid = pid
        self.number = number
        self.arguments = arguments


def build(names: tuple[str, ...], machine: str | None = None, *, changes: bool = False) -> bytes:
    """A filter that asks about the named calls and about every socket that a box may not have, and lets everything
    else through. With `changes` it asks about every call that can change a file system too. The guest filter beside it
    is that of `seccomp.leaving_sockets`. Pure."""
    machine = machine or os.uname().machine
    program = seccomp.Program()
    program.load(_ARCHITECTURE)
    program.jump(_EQUAL, seccomp.ARCHITECTURES[machine], None, "allow")
    program.load(_NUMBER)
    seccomp.ask_about_sockets(program, _USER_NOTIF, machine)
    opening = {name: at for name, at in OPENING.items() if changes and name not in names}
    for name in (*names, *(CHANGING if changes else ())):
        if (nr := number(name, machine)) is not None:
            program.jump(_EQUAL, nr, "notify")
    for name in opening:
        if (nr := number(name, machine)) is not None:
            program.jump(_EQUAL, nr, name)
    program.label("allow")
    program.answer(_ALLOW)
    for name, at in opening.items():
        program.label(name)
        program.load(_FIRST_ARGUMENT + 8 * at)
        program.jump(_SOME, CHANGING_FLAGS, "notify", "allowed")
    program.label("allowed")
    program.answer(_ALLOW)
    program.label("notify")
    program.answer(_USER_NOTIF)
    return program.assemble()


def changes_files(name: str, arguments: tuple[int, ...]) -> bool:
    """Whether a call, of which the filter asks, can change a file system."""
    at = OPENING.get(name)
    return name in CHANGING if at is None else bool(arguments[at] & CHANGING_FLAGS)


def install(program: bytes) -> int:
    """Put the filter on this process and its descendants; returns the listener, to be handed to the supervisor."""
    forbid_new_privileges()
    buffer = foreign.create_string_buffer(program, len(program))
    fprog = seccomp.SockFprog(len(program) // 8, foreign.addressof(buffer))
    try:
        return syscall("seccomp", _SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE_RECV, foreign.byref(fprog))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return syscall("seccomp", _SET_MODE_FILTER, _NEW_LISTENER, foreign.byref(fprog))


def answer_on_the_same_cpu(listener: int) -> None:
    """Wake the asking thread where the supervisor runs: a wake-up across processors costs ten times the answer."""
    libc.ioctl(listener, foreign.c_ulong(_SET_FLAGS), foreign.c_ulong(_SYNC_WAKE_UP))


def receive(listener: int) -> Notification | None:
    """The next call that waits; None when the thread died before it was looked at."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECV, buffer)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    identifier, pid, _flags, nr, _arch, _pointer, *arguments = _NOTIFICATION.unpack(buffer)
    return Notification(identifier, pid, nr, tuple(arguments))


def still_waiting(listener: int, notification: Notification) -> bool:
    """Whether the thread still waits for this answer: only then is its pid still its own."""
    try:
        fcntl.ioctl(listener, _ID_VALID, struct.pack("=Q", notification.id))
    except OSError:
        return False
    return True


def let_through(listener: int, notification: Notification) -> None:
    """The kernel carries the call out as it was made."""
    _respond(listener, _RESPONSE.pack(notification.id, 0, 0, _CONTINUE))


def refuse(listener: int, notification: Notification, code: int) -> None:
    """The call fails with that errno."""
    _respond(listener, _RESPONSE.pack(notification.id, 0, -code, 0))


def _respond(listener: int, response: bytes) -> None:
    try:
        fcntl.ioctl(listener, _SEND, bytearray(response))
    except OSError as error:
        # The thread died in the meantime.
        if error.errno != errno.ENOENT:
            raise
