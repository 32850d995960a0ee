# SPDX-License-Identifier: MIT
"""Landlock: a second wall around files, and a scope for signals and abstract sockets."""

from __future__ import annotations

import os
import stat

from agentbox.linux import foreign
from agentbox.linux.process import forbid_new_privileges
from agentbox.linux.syscalls import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15

# Number of file-system rights that each ABI knows: 1 has 13, 2 adds REFER, 3 TRUNCATE, 5 IOCTL_DEV.
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_SCOPE_SIGNAL = 2


class _RulesetAttr(foreign.Structure):
    _fields_ = (
        ("handled_access_fs", foreign.c_uint64),
        ("handled_access_net", foreign.c_uint64),
        ("scoped", foreign.c_uint64),
    )


class _PathBeneathAttr(foreign.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", foreign.c_uint64), ("parent_fd", foreign.c_int32))


def abi_version() -> int:
    """The kernel's Landlock ABI; 0 where it is absent or switched off."""
    try:
        return syscall("landlock_create_ruleset", 0, 0, _CREATE_VERSION)
    except OSError:
        return 0


def restrict(read_only: Iterable[str], writable: Iterable[str], devices: Iterable[str] = ()) -> int:
    """Confine this process and its descendants: read and execute below `read_only`, everything below `writable`,
    read and write of `devices`. Paths that do not exist are passed over.

    Returns the ABI that holds it, 0 where the kernel has no Landlock. TCP is not restricted: a server and its
    client inside one box must be able to talk.
    """
    abi = abi_version()
    if abi == 0:
        return 0
    handled = (1 << _RIGHTS_BY_ABI.get(abi, 16)) - 1
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if abi >= 6 else 0
    attr = _RulesetAttr(handled, 0, scoped)
    # Older kernels refuse a longer struct whose tail is not zero; they accept a shorter one.
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = syscall("landlock_create_ruleset", foreign.byref(attr), size, 0)
    try:
        readable = _EXECUTE | _READ_FILE | _READ_DIR
        for paths, access in (
            (read_only, readable),
            (writable, handled),
            (devices, readable | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV),
        ):
            for path in paths:
                _allow(ruleset, path, access & handled)
        forbid_new_privileges()
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FILE_RIGHTS
        rule = _PathBeneathAttr(access, fd)
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, foreign.byref(rule), 0)
    finally:
        os.close(fd)
