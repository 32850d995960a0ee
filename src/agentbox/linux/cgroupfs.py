# SPDX-License-Identifier: MIT
"""What cgroups v1 and v2 share: where hierarchies are mounted, where this process sits, control files.

Mounts and memberships are read from /proc/self/mountinfo and /proc/self/cgroup. In a container the path of
/proc/self/cgroup may lie outside of what is mounted, so a place is believed only when its cgroup.procs lists us.
"""

from __future__ import annotations

import os

from agentbox.errors import ConfinementError
from agentbox.records import dataclass

DIRECTORY = "agentbox"
CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted hierarchy: `kind` is the file system type, `root` the part of the hierarchy that is mounted."""

    kind: str
    root: str
    point: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for a control file; `expected` is what the kernel must answer when the file is read again."""

    file: str
    value: str
    expected: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A directory under which groups can be made, and the controllers that work there."""

    base: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a version offers here. `missing` says for each controller that is not usable why not."""

    places: tuple[Place, ...]
    missing: dict[str, str]

    @property
    def usable(self) -> frozenset[str]:
        """The limiting controllers that some place offers."""
        offered = frozenset[str]().union(*(place.controllers for place in self.places))
        return offered & frozenset(CONTROLLERS)


def read_text(path: str, dir_fd: int | None = None) -> str:
    """Return the content of a small kernel file (64 KiB at most). Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        return os.read(fd, 65536).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def write_text(path: str, value: str, dir_fd: int | None = None) -> None:
    """Write a value to a control file with one write. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def apply(settings: tuple[Setting, ...], group: str, dir_fd: int) -> None:
    """Write each setting and read it back. Raises ConfinementError when the kernel refuses or keeps another value."""
    for setting in settings:
        try:
            kept = _write_and_read_back(f"{group}/{setting.file}", setting.value, dir_fd)
        except FileNotFoundError:
            if setting.optional:
                continue
            raise
        except OSError as exc:
            raise ConfinementError(
                f"the kernel refused {setting.value!r} for {setting.file}: {exc.strerror}",
                hint="the limit may exceed what the parent control group allows, or lie below what is in use",
                step="cgroup",
                errno=exc.errno,
            ) from exc
        if kept != setting.expected:
            raise ConfinementError(
                f"{setting.file} holds {kept!r} after {setting.value!r} was written",
                hint="another program changes this control group, or the kernel does not support the limit",
                step="cgroup",
                errno=0,
            )


def _write_and_read_back(path: str, value: str, dir_fd: int) -> str:
    # One descriptor for both: opening costs more than writing.
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(fd, value.encode())
        return os.pread(fd, 4096, 0).decode().strip()
    finally:
        os.close(fd)


# What `mounts` read last, and what it means.
_understood: list[tuple[bytes, tuple[CgroupMount, ...]]] = [(b"", ())]


def mounts() -> tuple[CgroupMount, ...]:
    """Return the cgroup and cgroup2 mounts that this process sees. Empty when /proc is not readable."""
    try:
        with open("/proc/self/mountinfo", "rb", buffering=0) as file:
            text = file.readall()
    except OSError:
        return ()
    # A start asks three times, and reading costs less than understanding.
    known = _understood[0]
    if known[0] != text:
        known = _understood[0] = text, parse_mounts(text.decode("utf-8", "surrogateescape"))
    return known[1]


def parse_mounts(text: str) -> tuple[CgroupMount, ...]:
    """Return the cgroup mounts of a mountinfo text."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if separator and len(fields) > 4 and len(tail) > 2 and tail[0] in ("cgroup", "cgroup2"):
            options = frozenset(tail[2].split(","))
            found.append(CgroupMount(tail[0], _unescape(fields[3]), _unescape(fields[4]), options))
    return tuple(found)


def memberships() -> dict[str, str]:
    """Return controller -> path of this process; the unified hierarchy has the key "". Empty when unreadable."""
    try:
        return parse_memberships(read_text("/proc/self/cgroup"))
    except OSError:
        return {}


def parse_memberships(text: str) -> dict[str, str]:
    """Return controller -> path of a /proc/PID/cgroup text."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def own_directory(mount: CgroupMount, path: str) -> str | None:
    """Return the visible directory of the group this process is in, or None when it is not below the mount."""
    if mount.root == "/":
        relative = path
    elif path == mount.root or path.startswith(mount.root + "/"):
        relative = path[len(mount.root) :]
    else:
        relative = "/"
    directory = (mount.point + "/" + relative.strip("/")).rstrip("/")
    return directory if os.getpid() in members(directory) else None


def members(directory: str, dir_fd: int | None = None) -> list[int]:
    """Return the process ids in a group; 0 stands for a process of an outer PID namespace. Empty when unreadable."""
    try:
        fd = os.open(f"{directory}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return []
    try:
        with os.fdopen(fd, "rb") as file:
            return [int(line) for line in file.read().split()]
    except OSError:
        return []


def why_not_writable(directory: str) -> str | None:
    """Say why this process cannot make groups in a directory and move processes to it, or None when it can."""
    effective = os.access in os.supports_effective_ids
    # The directory of all owners may exist already and be another user's.
    taken = f"{directory}/{DIRECTORY}"
    for path in (directory, f"{directory}/cgroup.procs", *((taken,) if os.path.isdir(taken) else ())):
        if not os.access(path, os.W_OK, effective_ids=effective):
            try:
                read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
            except OSError:
                read_only = 0
            return f"{path} is " + ("mounted read-only" if read_only else f"not writable for uid {os.geteuid()}")
    return None


def _unescape(field: str) -> str:
    """Blanks and their like, which mountinfo writes as a backslash and three octal digits."""
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
