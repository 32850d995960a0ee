# SPDX-License-Identifier: MIT
"""The wait before a process may change its control groups, begun before it is needed.

The kernel lets whoever joins a control group wait until every processor has passed a quiet state: 10 to 20 ms. It does
so once; for about as long afterwards the next ones need not wait. A process that moves to where it is changes nothing,
and waits all the same.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = "/sys/fs/cgroup"
_READ_BYTES = 1 << 16


def begin_grace_period() -> None:
    """Begin the wait on a thread of its own. For the time before this process joins a group, or one that it forked.
    Does not raise: who is not allowed to, waits later."""
    import _thread

    _thread.start_new_thread(_stay, ())


def _stay() -> None:
    for place in _own_groups():
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.write(descriptor, b"0")
            return
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _own_groups() -> Iterator[str]:
    """Where the members of this process's groups are listed, as far as they are mounted where they usually are."""
    try:
        descriptor = os.open("/proc/self/cgroup", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _READ_BYTES).decode("utf-8", "surrogateescape")
        finally:
            os.close(descriptor)
    except OSError:
        return
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or controllers.isalpha():
            yield f"{_ROOT}/{controllers}{path}/cgroup.procs"
