# SPDX-License-Identifier: MIT
"""Attributes of the calling process: capabilities, dumpable, subreaper, identity, signals, descriptors."""

from __future__ import annotations

import os

from agentbox.light import signal
from agentbox.linux import foreign
from agentbox.linux.syscalls import check, libc, syscall

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

# Of the C library's `sigset_t`.
_SIGNAL_SET_BYTES = 128

_CAPABILITY_VERSION_3 = 0x20080522
# NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock: uid 0 and exec never give capabilities back.
_SECUREBITS_LOCKED = 0b11001111


class _CapHeader(foreign.Structure):
    _fields_ = (("version", foreign.c_uint32), ("pid", foreign.c_int))


def _prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return check(f"prctl {option}", int(libc.prctl(option, *(foreign.c_ulong(a) for a in padded))))


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same uid may look into this one through /proc and ptrace."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def show_as(title: str) -> None:
    """Replace the command line that /proc shows of this process and of children it forks: it is readable for
    everyone who sees the process, whatever else about it is not. Cut to the length of the old one."""
    with open("/proc/self/stat", "rb") as stat:
        # Fields 48 and 49, arg_start and arg_end; the name in field 2 may hold spaces and parentheses.
        start, end = map(int, stat.read().rpartition(b")")[2].split()[45:47])
    room = end - start
    if start and room > 1:
        foreign.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


def forget_environment() -> None:
    """Overwrite every copy of the environment's values: the area that the kernel made, and Python's own."""
    copies = [one for pair in os.environ._data.items() for one in pair]  # type: ignore[attr-defined]
    os.environ.clear()
    for copy in copies:
        # Python has one object for each single byte.
        if len(copy) > 1:
            foreign.memset(id(copy) + bytes.__basicsize__ - 1, 0, len(copy))
    with open("/proc/self/stat", "rb") as file:
        # Fields 50 and 51, env_start and env_end; the name in field 2 may hold spaces and parentheses.
        start, end = map(int, file.read().rpartition(b")")[2].split()[47:49])
    foreign.memset(start, 0, end - start)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """SIGKILL for this process when the one that forked it ends, until it changes its identity or executes a program
    that does. The parent may be gone already: compare os.getppid() before and after."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def forbid_new_privileges() -> None:
    """No execve of this process or its children can raise privileges (also lets them install filters)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    low, high = 0xFFFFFFFF, 32
    data = (foreign.c_uint32 * 6)(
        effective & low, permitted & low, inheritable & low, effective >> high, permitted >> high, inheritable >> high
    )
    syscall("capset", foreign.byref(header), data)


def permitted_capabilities() -> int:
    """The permitted set, as a bit mask."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def drop_all_capabilities() -> None:
    """Give up every capability in every set, for this process and all its descendants.

    Order matters: dropping from the bounding set needs CAP_SETPCAP, which the last step takes away.
    """
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_READ, foreign.c_ulong(capability), 0, 0, 0) < 0:
            break
        _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_SECUREBITS, _SECUREBITS_LOCKED)
    _set_capabilities(0, 0, 0)


CAP_SETUID = 7
CAP_SYS_PTRACE = 19
CAP_SYS_ADMIN = 21


def has_capability(capability: int) -> bool:
    """Whether this process may use it; root in a container often lacks some."""
    return bool(permitted_capabilities() >> capability & 1)


def keep_only_ptrace() -> None:
    """Give up every capability but CAP_SYS_PTRACE over this user namespace."""
    kept = 1 << CAP_SYS_PTRACE
    _set_capabilities(kept, kept, 0)


def become_user(uid: int, gid: int, *, only_ptrace: bool = False) -> None:
    """Take another identity for good but keep the capabilities, or CAP_SYS_PTRACE alone, so that root can still make
    namespaces where the host lets only privileged processes make them. Needs root."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    permitted = 1 << CAP_SYS_PTRACE if only_ptrace else permitted_capabilities()
    _set_capabilities(permitted, permitted, 0)
    # A process that changed its uid owns none of its /proc files until it is dumpable again.
    set_dumpable(True)


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    try:
        syscall("close_range", first, 0x7FFFFFFF, 0)
    except OSError:
        os.closerange(first, 1 << 16)


def reset_signals() -> None:
    """Default action for every signal and an empty mask: Python ignores SIGPIPE and SIGXFSZ, a program must not."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def signal_descriptor(number: int) -> int:
    """A descriptor that is readable when this signal, which must be blocked, has come; 128 bytes tell of each."""
    mask = (1 << (number - 1)).to_bytes(_SIGNAL_SET_BYTES, "little")
    return check("signalfd", int(libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)))
