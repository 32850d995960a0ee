# SPDX-License-Identifier: MIT
"""Two names that change places at once."""

from __future__ import annotations

import os

from agentbox.linux.syscalls import syscall

_HERE = -100
_EXCHANGE = 2


def exchange(one: str, other: str) -> None:
    """Swap what two paths of one file system name; no moment sees either missing. Raises OSError."""
    syscall("renameat2", _HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
