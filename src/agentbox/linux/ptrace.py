# SPDX-License-Identifier: MIT
"""The few requests of ptrace(2) that hold a process between its execve and its first instruction."""

from __future__ import annotations

import os

from agentbox.linux import foreign
from agentbox.linux.syscalls import check, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CONT = 7
_DETACH = 17
_GETEVENTMSG = 0x4201
_SEIZE = 0x4206
_INTERRUPT = 0x4207
_O_TRACEEXEC = 0x10
_O_EXITKILL = 0x100000

EVENT_EXEC = 4
EVENT_STOP = 128
WALL = 0x40000000

_AT_EXECFN = 31
_READ_BYTES = 1 << 16
_PAGE_BYTES = 4096


class _Vector(foreign.Structure):
    _fields_ = (("base", foreign.c_void_p), ("length", foreign.c_size_t))


def _function(name: str, arguments: tuple[Any, ...]) -> Any:
    """A function of the C library with its types said once: each call of the judge is on the way of a program."""
    function = getattr(libc, name, None)
    if function is not None:
        function.restype = foreign.c_long
        function.argtypes = arguments
    return function


_call = _function("ptrace", (foreign.c_long, foreign.c_long, foreign.c_void_p, foreign.c_void_p))
_copy = _function(
    "process_vm_readv",
    (foreign.c_long, foreign.c_void_p, foreign.c_ulong, foreign.c_void_p, foreign.c_ulong, foreign.c_ulong),
)
_buffer = foreign.create_string_buffer(_PAGE_BYTES)
_here = _Vector(foreign.addressof(_buffer), _PAGE_BYTES)
_there = _Vector(None, 0)
_here_at, _there_at = foreign.addressof(_here), foreign.addressof(_there)


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _call(request, pid, None, data) < 0:
        check(f"ptrace {request:#x}", -1)


def seize(pid: int) -> None:
    """Trace a process without stopping it; it stops right after its next execve, and dies with its tracer."""
    _ptrace(_SEIZE, pid, _O_TRACEEXEC | _O_EXITKILL)


def interrupt(pid: int) -> None:
    """Stop a traced process at the next chance."""
    _ptrace(_INTERRUPT, pid)


def proceed(pid: int, signal_number: int = 0) -> None:
    """Let a stopped process go on, still traced, and deliver the signal that stopped it."""
    _ptrace(_CONT, pid, signal_number)


def detach(pid: int, signal_number: int = 0) -> None:
    """Stop tracing a stopped process and let it go on."""
    _ptrace(_DETACH, pid, signal_number)


def tracer(proc: int, thread: int) -> int:
    """The process that traces a thread, 0 when none does or there is no such thread."""
    try:
        for line in _read(proc, f"{thread}/status", 4096).splitlines():
            if line.startswith(b"TracerPid:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def event(status: int) -> int:
    """The PTRACE_EVENT_* of a wait status, 0 when it is none."""
    return status >> 16


def executed_name(proc: int, pid: int) -> bytes:
    """The path that was given to the execve that made the process what it is (AT_EXECFN), read through a descriptor
    of /proc. Raises OSError."""
    auxv = _read(proc, f"{pid}/auxv", 4096)
    entries = memoryview(auxv[: len(auxv) // 16 * 16]).cast("Q")
    for key, value in zip(entries[::2], entries[1::2], strict=True):
        if key == _AT_EXECFN:
            return read_string(pid, value)
    return b""


def read_string(pid: int, address: int, limit: int = 4096) -> bytes:
    """A NUL-terminated string of another process's memory, at most `limit` bytes. Raises OSError."""
    found = b""
    while len(found) < limit:
        # A string may end right before a page that is not mapped.
        step = min(limit - len(found), _PAGE_BYTES - (address + len(found)) % _PAGE_BYTES)
        piece = read_bytes(pid, address + len(found), step)
        end = piece.find(b"\0")
        if end >= 0:
            return found + piece[:end]
        if not piece:
            break
        found += piece
    return found


def read_bytes(pid: int, address: int, size: int) -> bytes:
    """Up to 4096 bytes of another process's memory. Raises OSError."""
    _here.length = _there.length = min(size, _PAGE_BYTES)
    _there.base = address
    copied = _copy(pid, _here_at, 1, _there_at, 1, 0)
    if copied < 0:
        check("process_vm_readv", -1)
    return foreign.string_at(_buffer, copied)


def _read(proc: int, path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def arguments(proc: int, pid: int, limit: int = 1 << 20) -> list[bytes]:
    """The argv of a process, as the kernel holds it. Raises OSError."""
    fd = os.open(f"{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        found = bytearray()
        while len(found) < limit and (piece := os.read(fd, _READ_BYTES)):
            found += piece
            if len(piece) < _READ_BYTES:
                break
    finally:
        os.close(fd)
    return bytes(found).split(b"\0")[:-1]


def former_thread(pid: int) -> int:
    """After EVENT_EXEC: the id of the thread that called execve, which has the leader's id now."""
    message = foreign.c_ulong(0)
    if _call(_GETEVENTMSG, pid, None, foreign.addressof(message)) < 0:
        check("ptrace geteventmsg", -1)
    return message.value
