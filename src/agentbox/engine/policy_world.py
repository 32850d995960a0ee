# SPDX-License-Identifier: MIT
"""The world in which a policy is read: links, programs on the trusted PATH, included files. The policy room is pure;
this is where it meets the file system of the host."""

from __future__ import annotations

import os
import stat

from agentbox.engine.search_path import trusted_path
from agentbox.errors import PolicyError
from agentbox.policy.parser import parse
from agentbox.policy.text import MAX_TEXT_CHARACTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbox.policy.document import Policy

MAX_ENTRIES = 200_000
# A character takes at most four bytes.
MAX_FILE_BYTES = 4 * MAX_TEXT_CHARACTERS
_VERSION = "0123456789.-"


def load_policy(path: str, *, root: str | None = None) -> Policy:
    """The policy of a file. `root` is the directory of its relative paths, default the working directory.

    Raises PolicyError when the file cannot be read, PolicySyntaxError when its text is wrong.
    """
    try:
        content = read_policy_file(path)
    except OSError as error:
        raise PolicyError(
            f"cannot read the policy {path}: {error.strerror or error}",
            hint="name a policy file that can be read",
        ) from error
    base = os.path.abspath(root or os.curdir)
    return read_policy(content, path=os.path.abspath(path), root=base, display=path)


def read_policy(content: str | bytes, *, root: str, path: str | None = None, display: str | None = None) -> Policy:
    """The policy of a text, in the world of this host. Files are included only where the text has a `path`."""
    home = os.path.expanduser("~")
    programs = Programs()
    return parse(
        content,
        root=root,
        path=path,
        display=display,
        home=home if home.startswith("/") else None,
        resolve=os.path.realpath,
        find_program=programs.find,
        libexec_of=programs.libexec_of,
        read_include=read_policy_file if path is not None else None,
    )


def read_policy_file(path: str) -> bytes:
    """The content of a regular file of a policy's size. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(22, "not a regular file", path)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(27, "too large for a policy", path)
    return content


class Programs:
    """The programs of this host. `path` are the trusted directories, default those of PATH that are absolute, without
    shims."""

    def __init__(self, path: tuple[str, ...] | None = None) -> None:
        found = trusted_path() if path is None else path
        self._path = tuple(directory for directory in found if directory.startswith("/"))

    def find(self, name: str) -> str | None:
        """The resolved file of a bare name or of an absolute path; None when there is no such program."""
        candidates = (name,) if "/" in name else tuple(f"{directory}/{name}" for directory in self._path)
        for candidate in candidates:
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return os.path.realpath(candidate)
        return None

    def libexec_of(self, program: str) -> tuple[str, ...]:
        """The directories that hold the parts of one program, by the customs of installation."""
        prefix = os.path.dirname(os.path.dirname(program))
        name = os.path.basename(program)
        # x86_64-linux-gnu-gcc-12 keeps its parts below .../gcc.
        plain = name.rpartition("-linux-gnu-")[2].rstrip(_VERSION)
        candidates = []
        for own in dict.fromkeys((name, plain)):
            if own:
                candidates += [f"{prefix}/libexec/{own}", f"{prefix}/libexec/{own}-core", f"{prefix}/lib/{own}-core"]
        if plain in ("gcc", "g++", "cpp"):
            candidates += [f"{prefix}/lib/gcc", f"{prefix}/libexec/gcc"]
        found = (os.path.realpath(candidate) for candidate in candidates if os.path.isdir(candidate))
        return tuple(dict.fromkeys(found))


class HostFiles:
    """The FileView of this host's file system; looks at `max_entries` at most for one question."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries

    def exists(self, path: str) -> bool:
        """Whether something is at the path, a link counting as itself."""
        return os.path.lexists(path)

    def below(self, directory: str, wanted: Callable[[str], bool], depth: int | None) -> tuple[str, ...] | None:
        """The topmost wanted paths below a directory, sorted; None when there are too many entries."""
        found: list[str] = []
        waiting = [(directory, 1)]
        seen = 0
        while waiting:
            current, level = waiting.pop()
            try:
                names = os.scandir(current)
            except OSError:
                continue
            with names:
                for entry in names:
                    seen += 1
                    if seen > self._max_entries:
                        return None
                    path = f"{current.rstrip('/')}/{entry.name}"
                    if wanted(path):
                        found.append(path)
                    elif entry.is_dir(follow_symlinks=False) and (depth is None or level < depth):
                        waiting.append((path, level + 1))
        return tuple(sorted(found))


def absolute(path: str, root: str) -> str:
    """A path as a program in `root` would mean it, resolved: what a question asks about."""
    return os.path.realpath(os.path.join(root, os.path.expanduser(path)))
