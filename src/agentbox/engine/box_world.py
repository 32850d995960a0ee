# SPDX-License-Identifier: MIT
"""The world in which the policy of a request is read: the inside of a box whose workspace is /work.

No path of a request's policy is looked up on the host, but for programs in the directories that every box shows anyway.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from agentbox.engine.policy_world import Programs
from agentbox.errors import PolicyError
from agentbox.isolation.plan import WORKSPACE
from agentbox.policy.paths import is_below, lexical
from agentbox.workspace.listing import EMPTY, Listing

HOME = "/tmp"  # noqa: S108 - inside the box
# What a box shows of the host's programs, whatever its policy.
PROGRAM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_MAX_LINKS = 40
# Names that all patterns of one policy are compared with together: about two seconds of a thread.
MAX_LOOKS = 300_000


class BoxWorld:
    """What a policy's text meets inside a box. `search_path` is the PATH of its programs, `shown` are directories of
    the interpreter beyond those of every box, `listing` is what the workspace holds."""

    def __init__(self, search_path: Sequence[str], shown: Sequence[str], listing: Listing = EMPTY) -> None:
        self._programs = Programs(tuple(search_path))
        self._shown = (*PROGRAM_DIRECTORIES, *shown)
        self._listing = listing
        self._looks = 0

    def resolve(self, path: str) -> str:
        """The path without links, as far as they lie in the workspace; a loop of links stays as it is."""
        found = lexical(path)
        for _ in range(_MAX_LINKS):
            followed = self._followed(found)
            if followed == found:
                return found
            found = followed
        return lexical(path)

    def _followed(self, path: str) -> str:
        """The path with the first link on it replaced by its target."""
        if not is_below(path, WORKSPACE):
            return path
        parts = path[len(WORKSPACE) :].strip("/").split("/")
        for end in range(1, len(parts) + 1):
            target = self._listing.links.get("/".join(parts[:end]))
            if target is not None:
                base = "/".join((WORKSPACE, *parts[: end - 1]))
                rest = "/".join(parts[end:])
                return lexical(f"{target if target.startswith('/') else f'{base}/{target}'}/{rest}")
        return path

    def find_program(self, name: str) -> str | None:
        """The file of a program: of the box's own PATH, of what it shows, or in the workspace."""
        if name.startswith("/"):
            path = lexical(name)
            # A link of the workspace may lead to a program that every box shows.
            name = self.resolve(path)
            if is_below(name, WORKSPACE):
                return name
            if not any(is_below(name, directory) for directory in self._shown):
                return None
        return self._programs.find(name)

    def libexec_of(self, program: str) -> tuple[str, ...]:
        """See Programs."""
        return () if is_below(program, WORKSPACE) else self._programs.libexec_of(program)

    def exists(self, path: str) -> bool:
        """Whether something is at a path of the workspace. Elsewhere the box itself looks when it is built."""
        if not is_below(path, WORKSPACE):
            return True
        parent, _, name = path[len(WORKSPACE) :].strip("/").rpartition("/")
        return not name or name in self._listing.below.get(parent, ())

    def below(self, directory: str, wanted: Callable[[str], bool], depth: int | None) -> tuple[str, ...] | None:
        """The topmost wanted paths of the workspace that lie below a directory; None for one that is elsewhere.

        Raises PolicyError when all patterns together have looked at too many names.
        """
        start, level = directory, 1
        if is_below(WORKSPACE, directory):
            start, level = WORKSPACE, 1 + WORKSPACE.count("/") - directory.rstrip("/").count("/")
        elif not is_below(directory, WORKSPACE):
            return None
        found = []
        waiting = [(start[len(WORKSPACE) :].strip("/"), level)]
        while waiting:
            current, at = waiting.pop()
            names = self._listing.below.get(current, ())
            self._looks += len(names)
            if self._looks > MAX_LOOKS:
                raise PolicyError(
                    f"the policy's patterns look at more than {MAX_LOOKS} names in the working directory",
                    hint="use fewer patterns, or let them begin with a directory",
                )
            for name in names:
                inner = f"{current}/{name}" if current else name
                path = f"{WORKSPACE}/{inner}"
                if wanted(path):
                    found.append(path)
                elif inner in self._listing.below and (depth is None or at < depth):
                    waiting.append((inner, at + 1))
        return tuple(sorted(found))


def search_path_of(program: str) -> tuple[str, ...]:
    """The PATH of a box whose interpreter is `program`."""
    return tuple(dict.fromkeys((os.path.dirname(program), "/usr/local/bin", "/usr/bin", "/bin")))
