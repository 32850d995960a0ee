# SPDX-License-Identifier: MIT
"""The control groups of one box: limits, counters, joining, killing, removing."""

from __future__ import annotations

import _thread
import math
import os

from agentbox.errors import ConfinementError
from agentbox.light import contextlib
from agentbox.linux.cgroup_owners import kill_members, remove, subgroups
from agentbox.linux.cgroupfs import DIRECTORY, apply, members, mounts, read_text
from agentbox.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Version = Literal["v1", "v2"]
    from types import ModuleType

    from agentbox.linux.cgroupfs import Place

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STAT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits of one box: bytes of memory including its tmpfs files, processes and threads, processors.

    Raises ConfinementError for a limit that no kernel can hold.
    """

    memory_bytes: int
    pids: int
    cpus: float

    def __post_init__(self) -> None:
        if self.memory_bytes < _PAGE or self.pids < 1 or not (math.isfinite(self.cpus) and self.cpus >= 0.01):
            raise ConfinementError(
                f"{self} cannot be held", hint="at least one page, one process and 0.01 cpus", step="cgroup", errno=0
            )


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """What the kernel counted for a box; None where the controller that counts is not usable here.

    `cpu_ms` is processor time in milliseconds, `max_memory_bytes` the highest use (kernels before 5.19 with version 2:
    the highest of the samples taken by `anon_bytes` and `usage`), `oom_kills` the processes killed at the memory limit.
    """

    cpu_ms: float | None
    max_memory_bytes: int | None
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One hierarchy of this owner: the descriptor is of the directory agentbox/OWNER."""

    place: Place
    path: str
    fd: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the boxes of one owner share: version, dialect, hierarchies, the owner's name, what could not be removed."""

    version: Version
    dialect: ModuleType
    hierarchies: tuple[Hierarchy, ...]
    owner: str
    abandoned: set[str] = field(default_factory=set)

    def hierarchy(self, controller: str) -> Hierarchy | None:
        """Return where a controller works, or None."""
        return next((found for found in self.hierarchies if controller in found.place.controllers), None)

    def tail(self, box_id: str) -> str:
        """Return how the path of a box's group ends in every hierarchy."""
        return f"/{DIRECTORY}/{self.owner}/{box_id}"


class Cgroup:
    """The groups of one box: one per hierarchy. Made by `CgroupTree.create`; usable from any thread."""

    def __init__(self, ownership: Ownership, box_id: str, limits: CgroupLimits) -> None:
        self._ownership = ownership
        self._box_id = box_id
        self._limits = limits
        # Whether those are what the kernel has: not after a change that it refused a part of.
        self._certain = True
        self._made: list[Hierarchy] = []
        self._fds: list[int] = []
        self._stat_fd = -1
        self._sampled_peak = 0
        self._peak_counted: bool | None = None
        # Files that are read for every box, and what counters that the kernel does not reset said at its beginning.
        self._readers: dict[str, int] = {}
        self._cpu_before = 0.0
        self._oom_before = 0
        self._final: CgroupUsage | None = None
        # A poll on one thread must not read a descriptor that another thread closes, and the kernel gives away again.
        self._lock = _thread.allocate_lock()

    def attach_fds(self) -> tuple[int, ...]:
        """Return descriptors, close-on-exec: a process of one thread that writes b"0" to each joins the box.

        They stay open, and stay this object's, until `destroy`. The right to join is that of the process that made
        them, so a child may write after it gave up its rights.
        """
        return tuple(self._fds)

    def usage(self) -> CgroupUsage:
        """Return the kernel's counters; after `destroy`, their last values.

        Raises OSError when somebody else removed the group.
        """
        return self._final or CgroupUsage(self._cpu_ms(), self._max_memory_bytes(), self.oom_kills())

    def anon_bytes(self) -> int | None:
        """Return the anonymous memory in use, in bytes, without files; None without a memory controller.

        Cheap enough to be polled: one read of a descriptor that stays open.
        """
        hierarchy = self._ownership.hierarchy("memory")
        if hierarchy is None:
            return None
        with self._lock:
            return None if self._final is not None else self._read_stat(hierarchy, self._ownership.dialect.ANON_KEY)

    def shared_bytes(self) -> int | None:
        """Return the shared memory and files in memory in use, in bytes; None without a memory controller. As cheap as
        `anon_bytes`."""
        hierarchy = self._ownership.hierarchy("memory")
        if hierarchy is None:
            return None
        with self._lock:
            if self._final is not None:
                return None
            nested = self._nested_shared_bytes(hierarchy)
            return self._read_stat(hierarchy, self._ownership.dialect.SHARED_KEY) if nested is None else nested

    def _nested_shared_bytes(self, hierarchy: Hierarchy) -> int | None:
        """What the groups have that somebody else made in this one; None where there is none. The kernel counts what is
        below a group into it when it is asked, but may take a group for counted, for seconds, that is not."""
        key, found = self._ownership.dialect.SHARED_KEY, None
        for group in subgroups(f"{hierarchy.path}/{self._box_id}"):
            with contextlib.suppress(OSError):
                value = _value_of(read_text(f"{group}/memory.stat").encode(), key)
                found = (found or 0) + (value or 0)
        return found

    def pids(self) -> set[int]:
        """Return the processes in the box, as this process sees them."""
        return set().union(*(members(path, fd) for fd, path in self._groups())) - {0}

    def own_path(self) -> str:
        """Return the directory of the box's group of version 2; empty where it has groups of version 1."""
        return f"{self._made[0].path}/{self._box_id}" if self._ownership.version == "v2" and self._made else ""

    def oom_kills(self) -> int:
        """Return how many processes of the box the kernel killed at the memory limit; 0 without a memory controller."""
        if self._final is not None:
            return self._final.oom_kills
        hierarchy = self._ownership.hierarchy("memory")
        if hierarchy is None or self._stayed_below(hierarchy):
            return 0
        return self._oom_kills(hierarchy) - self._oom_before

    def spent(self) -> tuple[float | None, int | None]:
        """Return the processor time and the highest memory use of `usage`, at half its price. Raises OSError as it
        does."""
        return (
            (self._cpu_ms(), self._max_memory_bytes())
            if self._final is None
            else (
                self._final.cpu_ms,
                self._final.max_memory_bytes,
            )
        )

    def refused_processes(self) -> int:
        """Return how often a process or thread could not start because of the limit of them; 0 without a controller."""
        hierarchy = self._ownership.hierarchy("pids")
        with self._lock:
            return 0 if hierarchy is None or self._final is not None else self._keyed(hierarchy, "pids.events", "max")

    def set_limits(self, limits: CgroupLimits) -> None:
        """Change the limits of a living box.

        Raises ConfinementError when the kernel refuses, which it does for memory already in use; the limits before
        are then in force for whatever was not changed yet.
        """
        if limits == self._limits:
            return
        self._certain = False
        self._apply(limits, raised=limits.memory_bytes > self._limits.memory_bytes, before=self._limits)
        self._limits = limits
        self._certain = True

    def begin_anew(self) -> bool:
        """Make these the groups of another box, with counters that begin anew, when everything in them is gone.
        False where this kernel cannot: then `destroy`. Never raises."""
        try:
            if self._final is not None or not self._certain or not self._reset():
                return False
        except OSError:
            return False
        self._sampled_peak = 0
        return True

    def _reset(self) -> bool:
        memory = self._ownership.hierarchy("memory")
        if memory is not None:
            if not self._stayed_below(memory):
                self._oom_before = self._oom_kills(memory)
            if not self._ownership.dialect.reset_peak(self._reader(memory, self._ownership.dialect.USAGE_PEAK)):
                return False
        self._cpu_before += self._cpu_ms() or 0.0
        return True

    def nested_path(self) -> str | None:
        """Return the path of the box's groups from the root of each hierarchy, where it is the same in all: what a
        container engine of this host calls a parent. None where it is not."""
        paths = set()
        for hierarchy in self._made:
            path = f"{hierarchy.path}/{self._box_id}"
            mount = max(
                (one for one in mounts() if path.startswith(f"{one.point}/")),
                key=lambda one: len(one.point),
                default=None,
            )
            if mount is None:
                return None
            paths.add(f"{mount.root.rstrip('/')}{path[len(mount.point) :]}")
        return paths.pop() if len(paths) == 1 else None

    def kill(self) -> None:
        """Kill every process in the box; bounded to about 2 s. Never raises."""
        if self._final is None:
            kill_members(self._groups(), self._ownership.tail(self._box_id))

    def destroy(self) -> None:
        """Kill what lives in the box, remove its groups, close its descriptors. Idempotent; never raises.

        Blocks until the processes are gone, about 2 s at most; what stays is tried again when the tree is closed, and
        by `CgroupTree.sweep` after the owner has ended.
        """
        with self._lock:
            if self._final is not None:
                return
            self._final = self._last_usage()
            self._close_fds()
        if not remove(self._groups(), self._ownership.tail(self._box_id)):
            self._ownership.abandoned.add(self._box_id)

    def make(self) -> None:
        """Make the groups and put the limits in force, or leave nothing behind. Raises ConfinementError."""
        try:
            for hierarchy in self._ownership.hierarchies:
                os.mkdir(self._box_id, 0o755, dir_fd=hierarchy.fd)
                self._made.append(hierarchy)
            self._apply(self._limits, raised=False)
            for hierarchy in self._ownership.hierarchies:
                self._fds.append(self._open(hierarchy, self._ownership.dialect.JOIN_FILE, os.O_WRONLY))
        except OSError as exc:
            self.destroy()
            raise ConfinementError(
                f"the control group {self._box_id} could not be made: {exc.strerror}",
                hint="`agentbox doctor` says which control groups are usable here",
                step="cgroup",
                errno=exc.errno,
            ) from exc
        except ConfinementError:
            self.destroy()
            raise

    def _apply(self, limits: CgroupLimits, *, raised: bool, before: CgroupLimits | None = None) -> None:
        """Put limits in force; of those that are `before`, only the hierarchies whose limits differ are written."""
        memory_bytes = limits.memory_bytes // _PAGE * _PAGE
        for hierarchy in self._ownership.hierarchies:
            if before is not None and _held_in(hierarchy, before) == _held_in(hierarchy, limits):
                continue
            plan = self._ownership.dialect.settings(
                hierarchy.place, memory_bytes, limits.pids, limits.cpus, raised=raised
            )
            apply(plan, self._box_id, hierarchy.fd)

    def _groups(self) -> list[tuple[int | None, str]]:
        return [(hierarchy.fd, self._box_id) for hierarchy in self._made]

    def _open(self, hierarchy: Hierarchy, file: str, flags: int) -> int:
        return os.open(f"{self._box_id}/{file}", flags | os.O_CLOEXEC, dir_fd=hierarchy.fd)

    def _read(self, hierarchy: Hierarchy, file: str) -> str:
        return os.pread(self._reader(hierarchy, file), _STAT_BYTES, 0).decode()

    def _reader(self, hierarchy: Hierarchy, file: str) -> int:
        fd = self._readers.get(file)
        if fd is None:
            # A descriptor that may write too can reset a counter.
            flags = os.O_RDWR if file == self._ownership.dialect.USAGE_PEAK else os.O_RDONLY
            try:
                fd = self._open(hierarchy, file, flags)
            except PermissionError:
                fd = self._open(hierarchy, file, os.O_RDONLY)
            self._readers[file] = fd
        return fd

    def _stayed_below(self, memory: Hierarchy) -> bool:
        """Whether so little memory was ever used that the limit cannot have killed anything. The kernel reserves some
        in advance, so near the limit its own count is asked."""
        if not self._has_peak(memory):
            return False
        return int(self._read(memory, self._ownership.dialect.USAGE_PEAK)) < self._limits.memory_bytes // 2

    def _oom_kills(self, hierarchy: Hierarchy) -> int:
        return self._keyed(hierarchy, self._ownership.dialect.OOM_FILE, "oom_kill")

    def _keyed(self, hierarchy: Hierarchy, file: str, key: str) -> int:
        for line in self._read(hierarchy, file).splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return 0

    def _cpu_ms(self) -> float | None:
        if self._ownership.version == "v2":
            return self._keyed(self._ownership.hierarchies[0], "cpu.stat", "usage_usec") / 1e3 - self._cpu_before
        hierarchy = self._ownership.hierarchy("cpuacct")
        return None if hierarchy is None else int(self._read(hierarchy, "cpuacct.usage")) / 1e6 - self._cpu_before

    def _max_memory_bytes(self) -> int | None:
        hierarchy = self._ownership.hierarchy("memory")
        if hierarchy is None:
            return None
        if self._has_peak(hierarchy):
            return int(self._read(hierarchy, self._ownership.dialect.USAGE_PEAK))
        self._sample_peak(hierarchy)
        return self._sampled_peak

    def _read_stat(self, hierarchy: Hierarchy, key: bytes) -> int | None:
        if self._stat_fd < 0:
            self._stat_fd = self._open(hierarchy, "memory.stat", os.O_RDONLY)
        if not self._has_peak(hierarchy):
            self._sample_peak(hierarchy)
        return _value_of(os.pread(self._stat_fd, _STAT_BYTES, 0), key)

    def _has_peak(self, memory: Hierarchy) -> bool:
        if self._peak_counted is None:
            self._peak_counted = os.path.exists(f"{memory.path}/{self._ownership.dialect.USAGE_PEAK}")
        return self._peak_counted

    def _sample_peak(self, hierarchy: Hierarchy) -> None:
        self._sampled_peak = max(self._sampled_peak, int(self._read(hierarchy, "memory.current")))

    def _last_usage(self) -> CgroupUsage:
        try:
            return self.usage()
        except OSError:
            return CgroupUsage(None, None, 0)

    def _close_fds(self) -> None:
        fds, self._fds, stat_fd, self._stat_fd = [*self._fds, *self._readers.values()], [], self._stat_fd, -1
        self._readers.clear()
        for fd in (*fds, stat_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)


def _held_in(hierarchy: Hierarchy, limits: CgroupLimits) -> tuple[float, ...]:
    """Those of the limits that a hierarchy holds."""
    held = {"memory": limits.memory_bytes, "pids": limits.pids, "cpu": limits.cpus}
    return tuple(value for controller, value in held.items() if controller in hierarchy.place.controllers)


def _value_of(stat: bytes, key: bytes) -> int | None:
    _, _, rest = (b"\n" + stat).partition(key)
    return int(rest.partition(b"\n")[0]) if rest else None
