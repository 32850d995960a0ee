# SPDX-License-Identifier: MIT
"""The wait before a process may change its control groups, begun before it is needed.

The kernel lets a process that joins a control group of version 2 wait until every processor has passed a quiet state:
10 to 20 ms. It does so once; for about as long afterwards the next ones need not wait. A process that moves to where it
is changes nothing, and waits all the same. A thread of version 1 joins without: cgroups_v1.JOIN_FILE.
"""

from __future__ import annotations

import os

from agentbox.light import contextlib

_GROUP = "/sys/fs/cgroup"
_READ_BYTES = 1 << 16


def begin_grace_period() -> None:
    """Begin the wait on a thread of its own, where there is one. For the time before this process joins a group, or one
    that it forked. Does not raise: who is not allowed to, waits later."""
    if os.path.exists(f"{_GROUP}/cgroup.controllers"):
        import _thread

        _thread.start_new_thread(_stay, ())


def _stay() -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{_GROUP}{_own_path()}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)


def _own_path() -> str:
    """This process's group, in the hierarchy of version 2. Raises OSError."""
    descriptor = os.open("/proc/self/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(descriptor, _READ_BYTES).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)
    return next((line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::")), "")
