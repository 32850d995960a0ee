# SPDX-License-Identifier: MIT
"""A guest's working directory, reached only through a directory descriptor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tree:
    """An open directory of a guest: every path is walked from `fd`, as `uid`/`gid`, and no link is followed.

    `uid` and `gid` are the guest's ids as the host sees them, None where the guest runs as the host's own user.
    """

    fd: int
    uid: int | None = None
    gid: int | None = None
