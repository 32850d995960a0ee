# SPDX-License-Identifier: MIT
"""Where the symbolic links of an archive would lead, worked out on paper before one of them exists."""

from __future__ import annotations

from collections.abc import Mapping

from agentbox.workspace.names import MAX_DEPTH

WORKSPACE = b"work"
# What every box shows of the host, read-only and without secrets; a virtual environment links to it.
VISIBLE_ROOTS = frozenset({b"usr", b"bin", b"sbin", b"lib", b"lib32", b"lib64"})
_MAX_HOPS = 40
_MAX_STEPS = 1024
_MAX_ALL_STEPS = 1_000_000

Path = tuple[bytes, ...]


class LinkMap:
    """All links of one archive, by their place in the tree."""

    def __init__(self, links: Mapping[Path, bytes]) -> None:
        self._links = links
        self._steps_left = _MAX_ALL_STEPS

    def leads_out(self, place: Path) -> bool:
        """Whether the link at `place` can lead out of the tree, through others too.

        Inside are: the tree, by a relative path or as /work, and an absolute path without '..' below /usr, /bin, /lib
        and their like. Links of more than 40 hops, and those too tangled to follow to the end, count as leading out.
        """
        location = list(place[:-1])
        pending = [place[-1]]
        steps = hops = 0
        while pending:
            part = pending.pop()
            steps += 1
            if steps > min(_MAX_STEPS, self._steps_left):
                break
            if part == b"..":
                if not location:
                    break
                location.pop()
                continue
            location.append(part)
            target = self._links.get(tuple(location)) if len(location) <= MAX_DEPTH else None
            if target is None:
                continue
            location.pop()
            hops += 1
            steps += target.count(b"/")
            if hops > _MAX_HOPS or steps > _MAX_STEPS:
                break
            parts = [p for p in target.split(b"/") if p not in (b"", b".")]
            if target.startswith(b"/"):
                root = parts[0] if parts else b""
                if root in VISIBLE_ROOTS:
                    self._steps_left -= steps
                    return b".." in parts or b".." in pending
                if root != WORKSPACE:
                    break
                location.clear()
                del parts[0]
            pending.extend(reversed(parts))
        else:
            self._steps_left -= steps
            return False
        self._steps_left = max(0, self._steps_left - steps)
        return True
