# SPDX-License-Identifier: MIT
"""UNIX sockets of the host that lie where a policy lends files: whoever sees one can connect to it, also on a read-only
mount, and so to the Docker daemon or a key agent. A file rule is no rule for them."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LISTED = "/proc/net/unix"
_MAX_LISTED_BYTES = 8 << 20
_COLUMNS = 8


def sockets_below(places: Sequence[str], directory: str) -> list[str]:
    """The sockets at and below these real paths that a process of this network namespace has made.

    A socket that was made by a relative name is looked for below `directory` and every place, and the directories above
    them: the kernel tells names as they were given. Raises nothing.
    """
    try:
        with open(_LISTED, "rb") as file:
            listed = file.read(_MAX_LISTED_BYTES)
    except OSError:
        return []
    bases = _with_parents((directory, *places))
    below = tuple(place.rstrip("/") + "/" for place in places)
    found: dict[str, None] = {}
    for name in _names(listed):
        for path in (name,) if name.startswith("/") else (f"{base}/{name}" for base in bases):
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            if (real in places or real.startswith(below)) and _is_socket(real):
                found[real] = None
    return list(found)


def _names(listed: bytes) -> Iterator[str]:
    """The names of the sockets that have one in the file system."""
    for line in listed.splitlines()[1:]:
        columns = line.split(None, _COLUMNS - 1)
        if len(columns) == _COLUMNS and not columns[-1].startswith(b"@"):
            yield os.fsdecode(columns[-1])


def _with_parents(places: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for place in places:
        above = place
        while above not in found:
            found[above] = None
            above = os.path.dirname(above)
    return [place.rstrip("/") for place in found]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
