# SPDX-License-Identifier: MIT
"""File-system credentials of the calling thread."""

from __future__ import annotations

import os

from agentbox.light import contextlib
from agentbox.linux import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_libc = foreign.CDLL(None, use_errno=True)


@contextlib.contextmanager
def acting_as(uid: int | None, gid: int | None) -> Iterator[None]:
    """Make file accesses of this thread with a guest's uid and gid; None leaves them as they are.

    A tmpfs that was mounted in a user namespace refuses (EOVERFLOW) files of a uid that is not mapped there, root's
    included, so the host must act as the guest to place files; it also gives up CAP_DAC_OVERRIDE while it does.
    Only for code that stays on one thread until the end of the block. Raises PermissionError when not allowed.
    """
    if uid is None or gid is None or (uid == os.geteuid() and gid == os.getegid()):
        yield
        return
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    try:
        # setfsuid reports no failure; a second call returns the value in force.
        if _libc.setfsuid(-1) != uid or _libc.setfsgid(-1) != gid:
            raise PermissionError(f"cannot act as uid {uid}, gid {gid}")
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())
