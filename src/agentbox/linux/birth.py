# SPDX-License-Identifier: MIT
"""When a file was made, which a file system may know and `os.stat` does not tell."""

from __future__ import annotations

import os
import struct

from agentbox.linux import foreign
from agentbox.linux.syscalls import syscall

_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
# <linux/stat.h>: the whole, the mask at its start, the time of birth in seconds and nanoseconds.
_STATX_BYTES = 256
_BIRTH_AT = 80


def birth_ns(directory: int, name: str) -> int | None:
    """The time in nanoseconds at which what has that name in an open directory was made, no link followed; None where
    the file system does not know. Raises OSError."""
    found = foreign.create_string_buffer(_STATX_BYTES)
    syscall("statx", directory, os.fsencode(name), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, found)
    (mask,) = struct.unpack_from("=I", found)
    if not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)
