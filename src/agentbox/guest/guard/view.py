# SPDX-License-Identifier: MIT
"""What needs no rule: the implicit view of a run, and the box's own private directories.

The view is read-only: system programs and libraries, certificates, time zones, the interpreter's own files, the entry
script and the modules beside it, harmless devices and what the kernel says of the process itself. Nothing of it is
recorded. Each path here was resolved before it is looked up.
"""

from __future__ import annotations

from posix import getpid

from .matching import is_below
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TREES = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/System/Library", "/Library"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/fonts"),
    *("/etc/python3", "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm"),
    *("/proc/sys", "/dev/fd", "/dev/pts"),
)
_FILES = frozenset(
    f"/etc/{name}"
    for name in (
        *("ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.preload", "localtime", "timezone"),
        *("mime.types", "os-release", "lsb-release", "debian_version", "redhat-release", "nsswitch.conf"),
        *("host.conf", "hosts", "resolv.conf", "gai.conf", "services", "protocols", "networks", "locale.alias"),
    )
) | frozenset(
    f"/proc/{name}"
    for name in ("cpuinfo", "meminfo", "stat", "version", "uptime", "loadavg", "filesystems", "mounts", "cmdline")
)
_DEVICES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout", "stderr")
)
_OF_SELF = frozenset(
    (
        *("status", "stat", "statm", "maps", "smaps", "smaps_rollup", "cmdline", "comm", "limits", "cgroup", "mounts"),
        *("mountinfo", "io", "fd", "fdinfo", "oom_score", "oom_score_adj", "environ", "task", "net", "children"),
        *("loginuid", "sessionid", "wchan", "personality", "schedstat", "sched", "numa_maps", "auxv", "timerslack_ns"),
    )
)
_CODE = (".py", ".pyc", ".pyi", ".pyd", ".so", ".pth")


@sealed
class View:
    """The view of one process. `private` are directories that nobody outside the box sees."""

    def __init__(
        self, code_roots: Any, code_directories: Any, private: Any, lent: Any, entry: str, is_written: Any
    ) -> None:
        self._private = tuple(private)
        # What a rule lends within a private directory is not private.
        self._lent = tuple([base for base in lent if any(is_below(base, root) for root in self._private)])
        self._trees = _TREES
        # Where the guest may write, code is read like anything else: by a rule, and recorded.
        self._is_written = is_written
        self._code_roots = tuple([root for root in code_roots if root != "/"])
        self._code_directories = tuple([root for root in code_directories if root != "/"])
        self._entry = self._entry_directory = ""
        if entry:
            self.enter(entry)

    def enter(self, entry: str) -> None:
        """Set the entry script, once; with a trailing slash, the directory of the modules alone."""
        if not self._entry_directory:
            self._entry = entry
            self._entry_directory = entry.rpartition("/")[0] or "/"

    def is_code(self, path: str) -> bool:
        """Whether a resolved path is the interpreter's, a package's, or a module beside the entry script."""
        if self._is_written(path):
            return False
        for root in self._code_roots:
            if is_below(path, root):
                return True
        if path == self._entry:
            return True
        if not path.endswith(_CODE):
            return False
        for root in self._code_directories:
            if is_below(path, root):
                return True
        directory = self._entry_directory
        return bool(directory) and is_below(path, directory)

    def is_listable(self, directory: str) -> bool:
        """Whether an import may look for modules in a directory."""
        for root in (*self._code_roots, *self._code_directories, self._entry_directory):
            if root and is_below(directory, root):
                return True
        return False

    def reads(self, path: str) -> bool:
        """Whether a resolved path may be read without a rule."""
        if path in _FILES or path in _DEVICES:
            return True
        for tree in self._trees:
            if is_below(path, tree):
                return True
        if path.startswith("/proc/"):
            return _is_of_self(path)
        return self.is_private(path) or self.is_code(path)

    def writes(self, path: str) -> bool:
        """Whether a resolved path may be written without a rule."""
        if path in _DEVICES or is_below(path, "/dev/pts"):
            return True
        if path.startswith("/proc/"):
            name = path.rpartition("/")[2]
            # A descriptor whose link was not followed is a pipe or a socket, such as /dev/stdout: it is open already.
            nameless = path.count("/") == 4 and path.split("/")[3] == "fd" and name.isdigit()
            return _is_of_self(path) and (nameless or name in ("oom_score_adj", "comm", "timerslack_ns"))
        return self.is_private(path)

    def is_private(self, path: str) -> bool:
        """Whether a resolved path lies in a directory that nobody outside the box sees."""
        if not any(is_below(path, root) for root in self._private):
            return False
        return not any(is_below(path, base) for base in self._lent)


def _is_of_self(path: str) -> bool:
    parts = path.split("/")
    # ['', 'proc', PID, NAME, ...]
    if len(parts) < 4 or parts[2] not in ("self", "thread-self", str(getpid())):
        return len(parts) == 3 and parts[2] in ("self", str(getpid()))
    if parts[3] == "task" and len(parts) > 5:
        return parts[5] in _OF_SELF
    return parts[3] in _OF_SELF or (parts[3] == "fd" and ":" not in parts[-1])
